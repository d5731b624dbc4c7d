// Package ca is the certificate authority of one session. It signs the certificates
// that programs get for hosts whose TLS ends in Caisson. Its keys exist in memory
// only.
package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"strings"
	"sync"
	"time"
)

const (
	// backdate is how long before now certificates begin to be valid, for programs
	// whose clock is behind.
	backdate = time.Hour
	// maxLeaves bounds memory. Rules name far fewer hosts.
	maxLeaves = 4096
)

// Authority is the certificate authority of one session. It is safe for concurrent
// use.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	// leafKey is shared by all leaves.
	leafKey crypto.Signer
	now     func() time.Time

	mu     sync.Mutex
	leaves map[string]*tls.Certificate
}

// New returns an authority with new ECDSA P-256 keys, valid from an hour ago until
// the given time.
func New(until time.Time) (*Authority, error) {
	now := time.Now()
	if !until.After(now) {
		return nil, fmt.Errorf("a certificate authority until %s: that is not in the future", until.Format(time.RFC3339))
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate a key: %w", err)
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate a key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		// Programs find an issuer by its name, so two sessions need different
		// names.
		Subject:               pkix.Name{CommonName: "Caisson session " + serial.Text(16)[:8], Organization: []string{"Caisson"}},
		NotBefore:             now.Add(-backdate),
		NotAfter:              until,
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("create a certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse a certificate: %w", err)
	}
	return &Authority{cert: cert, key: key, leafKey: leafKey, now: time.Now, leaves: map[string]*tls.Certificate{}}, nil
}

func newSerial() (*big.Int, error) {
	low := new(big.Int).Lsh(big.NewInt(1), 126)
	n, err := rand.Int(rand.Reader, low)
	if err != nil {
		return nil, fmt.Errorf("generate a serial number: %w", err)
	}
	return n.Add(n, low), nil
}

// PEM returns the authority's certificate, without its key.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// SHA256 returns the hash of the certificate's DER encoding in hexadecimal.
func (a *Authority) SHA256() string {
	return fmt.Sprintf("%x", sha256.Sum256(a.cert.Raw))
}

// Leaf returns the certificate and key for a canonical host name or address. The
// caller must have checked that a rule names the host.
func (a *Authority) Leaf(host string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if leaf := a.leaves[host]; leaf != nil {
		return leaf, nil
	}
	if len(a.leaves) >= maxLeaves {
		return nil, fmt.Errorf("certificates for more than %d hosts", maxLeaves)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		NotBefore:    a.cert.NotBefore,
		NotAfter:     a.cert.NotAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		template.IPAddresses = append(template.IPAddresses, addr.AsSlice())
	} else {
		template.DNSNames = []string{host}
	}
	if len(host) <= 64 { // the limit for a common name
		template.Subject.CommonName = host
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, a.leafKey.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("create a certificate for %s: %w", host, err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse a certificate for %s: %w", host, err)
	}
	leaf := &tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: a.leafKey, Leaf: parsed}
	a.leaves[host] = leaf
	return leaf, nil
}

// ServerNameError reports a handshake that names another host than the
// connection's.
type ServerNameError struct{ Host, Name string }

func (e *ServerNameError) Error() string {
	return fmt.Sprintf("the TLS handshake with %s names %q", e.Host, e.Name)
}

// ServerConfig returns the TLS configuration for programs' connections to a
// canonical host, with HTTP/2 and HTTP/1.1. A handshake that names another host
// fails with an alert and a *ServerNameError. A handshake may name no host: Java
// names no host without a dot, and no program names an address.
func (a *Authority) ServerConfig(host string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		Time:       a.now,
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if name := hello.ServerName; name != "" && !strings.EqualFold(name, host) {
				return nil, &ServerNameError{Host: host, Name: name}
			}
			return a.Leaf(host)
		},
		// Tickets would outlive a rule that was removed.
		SessionTicketsDisabled: true,
	}
}

// ReadRoots returns the certificates in PEM texts, such as ca: files. It returns an
// error if a text has no certificate, or a PEM block of another type.
func ReadRoots(texts ...[]byte) ([]*x509.Certificate, error) {
	var roots []*x509.Certificate
	for _, text := range texts {
		found := len(roots)
		for {
			var block *pem.Block
			block, text = pem.Decode(text)
			if block == nil {
				break
			}
			if block.Type != "CERTIFICATE" {
				return nil, fmt.Errorf("a %q among certificates", block.Type)
			}
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("parse a certificate: %w", err)
			}
			roots = append(roots, cert)
		}
		if len(roots) == found {
			return nil, errors.New("no certificates in PEM form")
		}
	}
	return roots, nil
}
