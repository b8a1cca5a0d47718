// Package pki makes the keys, certificates and kubeconfigs of a cluster that
// lives for a day at most.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// lifetime is longer than any lab lives.
const lifetime = 365 * 24 * time.Hour

// Authority signs certificates.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	// CertificatePEM and KeyPEM are what to write to files.
	CertificatePEM, KeyPEM []byte
}

// Pair is a certificate and its key.
type Pair struct{ CertificatePEM, KeyPEM []byte }

// NewAuthority makes a certificate authority.
func NewAuthority(commonName string) (*Authority, error) {
	template, err := newTemplate(pkix.Name{CommonName: commonName})
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature

	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the authority %s: %w", commonName, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the authority %s: %w", commonName, err)
	}
	return &Authority{certificate, key, encode("CERTIFICATE", der), keyPEM}, nil
}

// Client issues a client certificate: Kubernetes takes the common name for the
// user and the organizations for its groups.
func (a *Authority) Client(user string, groups ...string) (Pair, error) {
	return a.issue(pkix.Name{CommonName: user, Organization: groups}, x509.ExtKeyUsageClientAuth, nil, nil)
}

// Server issues a server certificate for the given names and addresses.
func (a *Authority) Server(commonName string, names []string, addresses []netip.Addr) (Pair, error) {
	return a.issue(pkix.Name{CommonName: commonName}, x509.ExtKeyUsageServerAuth, names, addresses)
}

func (a *Authority) issue(
	subject pkix.Name, usage x509.ExtKeyUsage, names []string, addresses []netip.Addr,
) (Pair, error) {
	template, err := newTemplate(subject)
	if err != nil {
		return Pair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{usage}
	template.DNSNames = names
	for _, address := range addresses {
		template.IPAddresses = append(template.IPAddresses, net.IP(address.AsSlice()))
	}
	key, keyPEM, err := newKey()
	if err != nil {
		return Pair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("issue a certificate to %s: %w", subject.CommonName, err)
	}
	return Pair{encode("CERTIFICATE", der), keyPEM}, nil
}

// ServiceAccountKeys makes the key pair that signs service account tokens, and
// returns both halves in PEM.
func ServiceAccountKeys() (private, public []byte, err error) {
	key, private, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("encode a public key: %w", err)
	}
	return private, encode("PUBLIC KEY", der), nil
}

// Write writes the pair to dir/name.crt and dir/name.key.
func (p Pair) Write(dir, name string) error {
	if err := os.WriteFile(filepath.Join(dir, name+".crt"), p.CertificatePEM, 0o644); err != nil {
		return fmt.Errorf("write a certificate: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".key"), p.KeyPEM, 0o600); err != nil {
		return fmt.Errorf("write a key: %w", err)
	}
	return nil
}

func newTemplate(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("choose a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(lifetime),
	}, nil
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	return key, encode("EC PRIVATE KEY", der), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
