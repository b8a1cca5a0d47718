package pki

import (
	"encoding/json"
	"fmt"
	"os"
)

// WriteKubeconfig writes a kubeconfig that holds everything it needs, in JSON
// (which is YAML too).
func (a *Authority) WriteKubeconfig(path, server, user string, client Pair) error {
	type named map[string]any
	const name = "purelb-lab"
	config := map[string]any{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": name,
		"clusters": []named{{"name": name, "cluster": map[string]any{
			"server":                     server,
			"certificate-authority-data": a.CertificatePEM, // []byte becomes base64
		}}},
		"users": []named{{"name": user, "user": map[string]any{
			"client-certificate-data": client.CertificatePEM,
			"client-key-data":         client.KeyPEM,
		}}},
		"contexts": []named{{"name": name, "context": map[string]any{
			"cluster": name, "user": user,
		}}},
	}
	text, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the kubeconfig of %s: %w", user, err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the kubeconfig of %s: %w", user, err)
	}
	return nil
}
