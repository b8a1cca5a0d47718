package authorities

import (
	"bytes"
	"crypto/x509"
	"testing"
)

func TestPEM(t *testing.T) {
	if pool := x509.NewCertPool(); !pool.AppendCertsFromPEM(PEM()) {
		t.Error("there is no certificate")
	}
	if !bytes.Equal(PEM(), PEM()) {
		t.Error("a second time they differ")
	}
}
