// Package authorities has the certificates of public authorities, for images.
package authorities

import (
	"bytes"
	"encoding/pem"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	// Module has the certificates.
	Module = "golang.org/x/crypto/x509roots/fallback"

	// File is where Go looks for them in an image.
	File = "etc/ssl/certs/ca-certificates.crt"
)

// PEM returns the certificates, of Mozilla's list. Those with constraints that a file cannot express are left out.
func PEM() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			// A buffer takes all that is written to it.
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return out.Bytes()
}
