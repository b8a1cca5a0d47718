package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"testing"
)

func TestIssuedCertificatesVerify(t *testing.T) {
	authority, err := NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority.CertificatePEM) {
		t.Fatal("the authority's certificate does not parse")
	}
	server, err := authority.Server("kube-apiserver", []string{"kubernetes"}, []netip.Addr{netip.MustParseAddr("fd00::2")})
	if err != nil {
		t.Fatal(err)
	}
	client, err := authority.Client("system:node:node1", "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		pair    Pair
		options x509.VerifyOptions
	}{
		"server by name":    {server, x509.VerifyOptions{DNSName: "kubernetes"}},
		"server by address": {server, x509.VerifyOptions{DNSName: "fd00::2"}},
		"client":            {client, x509.VerifyOptions{KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := tls.X509KeyPair(tc.pair.CertificatePEM, tc.pair.KeyPEM); err != nil {
				t.Fatal(err)
			}
			block, _ := pem.Decode(tc.pair.CertificatePEM)
			certificate, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			tc.options.Roots = roots
			if _, err := certificate.Verify(tc.options); err != nil {
				t.Error(err)
			}
		})
	}
}
