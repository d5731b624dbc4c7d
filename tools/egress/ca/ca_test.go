package ca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

func newAuthority(t testing.TB) *Authority {
	t.Helper()
	a, err := New(time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func poolOf(t testing.TB, a *Authority) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(a.PEM()) {
		t.Fatal("the authority's PEM has no certificate")
	}
	return pool
}

// handshake returns the errors of a client and of the server of host.
func handshake(t *testing.T, a *Authority, host string, client *tls.Config) (clientErr, serverErr error) {
	t.Helper()
	c, s := net.Pipe()
	defer func() { _, _ = c.Close(), s.Close() }()
	done := make(chan error, 1)
	go func() {
		err := tls.Server(s, a.ServerConfig(host)).HandshakeContext(t.Context())
		_ = s.Close()
		done <- err
	}()
	conn := tls.Client(c, client)
	clientErr = conn.HandshakeContext(t.Context())
	if clientErr == nil && conn.ConnectionState().NegotiatedProtocol != "h2" {
		t.Errorf("the protocol is %q, want h2", conn.ConnectionState().NegotiatedProtocol)
	}
	_ = c.Close()
	return clientErr, <-done
}

// TestHandshake is attack 32: leaves for other names, and authorities of other sessions.
func TestHandshake(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	protocols := []string{"h2", "http/1.1"}
	for _, host := range []string{"api.example.com", "10.1.2.3", "fd00::1", "localhost", strings.Repeat("a.", 60) + "example.com"} {
		if c, s := handshake(t, a, host, &tls.Config{ServerName: host, RootCAs: poolOf(t, a), NextProtos: protocols}); c != nil || s != nil {
			t.Errorf("%s: client %v, server %v", host, c, s)
		}
		if c, _ := handshake(t, a, host, &tls.Config{ServerName: host, RootCAs: poolOf(t, b), NextProtos: protocols}); c == nil {
			t.Errorf("%s: a session trusts the authority of another", host)
		}
	}
	c, s := handshake(t, a, "api.example.com", &tls.Config{ServerName: "other.example.com", RootCAs: poolOf(t, a)})
	if name, ok := errors.AsType[*ServerNameError](s); c == nil || !ok || name.Name != "other.example.com" {
		t.Errorf("a handshake that names another host: client %v, server %v", c, s)
	}
	if c, _ := handshake(t, a, "api.example.com", &tls.Config{ServerName: "API.example.com", RootCAs: poolOf(t, a), NextProtos: protocols}); c != nil {
		t.Errorf("another case of the name: %v", c)
	}
}

// TestLeaves checks what certificates say, and that leaves sign nothing.
func TestLeaves(t *testing.T) {
	a := newAuthority(t)
	now := time.Now()
	if c := a.cert; !c.IsCA || !c.MaxPathLenZero || c.KeyUsage != x509.KeyUsageCertSign || c.NotBefore.After(now.Add(-backdate+time.Minute)) || !c.NotAfter.Before(now.Add(time.Hour+time.Minute)) {
		t.Errorf("the authority is %+v", c)
	}
	leaf, err := a.Leaf("api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	l := leaf.Leaf
	if len(l.DNSNames) != 1 || l.DNSNames[0] != "api.example.com" || l.IPAddresses != nil || l.IsCA || l.NotAfter != a.cert.NotAfter || !bytes.Equal(l.AuthorityKeyId, a.cert.SubjectKeyId) || len(l.AuthorityKeyId) == 0 {
		t.Errorf("the leaf is %+v", l)
	}
	if key, ok := a.key.(*ecdsa.PrivateKey); !ok || key.Curve != elliptic.P256() {
		t.Errorf("the key is %T", a.key)
	}
	if again, err := a.Leaf("api.example.com"); err != nil || again != leaf {
		t.Errorf("a second leaf for one host: %v", err)
	}
	if l.SerialNumber.Cmp(a.cert.SerialNumber) == 0 {
		t.Error("two certificates have one serial number")
	}
	for rest := a.PEM(); len(rest) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			t.Fatalf("the PEM holds %v", block)
		}
	}
	for range 2 * maxLeaves {
		if _, err = a.Leaf(time.Now().Format("h150405.000000000") + ".test"); err != nil {
			break
		}
	}
	if err == nil {
		t.Error("leaves are not bounded")
	}
	if _, err := New(now); err == nil {
		t.Error("an authority without time left is made")
	}
}

// TestExpired checks that programs refuse the authority after the session's bound.
func TestExpired(t *testing.T) {
	a := newAuthority(t)
	later := func() time.Time { return time.Now().Add(2 * time.Hour) }
	if c, _ := handshake(t, a, "a.test", &tls.Config{ServerName: "a.test", RootCAs: poolOf(t, a), Time: later}); c == nil {
		t.Error("a certificate is valid after the session's bound")
	}
}

func TestReadRoots(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	roots, err := ReadRoots(append(a.PEM(), b.PEM()...), append([]byte("a comment\n"), a.PEM()...))
	if err != nil || len(roots) != 3 {
		t.Errorf("%d certificates, %v", len(roots), err)
	}
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})
	broken := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})
	for name, text := range map[string][]byte{"empty": nil, "text": []byte("x"), "a key": append(a.PEM(), key...), "broken": broken} {
		if roots, err := ReadRoots(text); err == nil {
			t.Errorf("%s: %d certificates", name, len(roots))
		}
	}
}

func BenchmarkLeaf(b *testing.B) {
	a := newAuthority(b)
	for b.Loop() {
		clear(a.leaves)
		if _, err := a.Leaf("api.example.com"); err != nil {
			b.Fatal(err)
		}
	}
}
