package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// authority is a CA of the test, with one server's certificate.
type authority struct {
	pool   *x509.CertPool
	server tls.Certificate
	file   string // its own certificate, as SSL_CERT_FILE takes it
}

func newAuthority(t *testing.T, dir, called string) authority {
	t.Helper()
	sign := func(template, parent *x509.Certificate, public, signer *ecdsa.PrivateKey) []byte {
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &public.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	var keys [2]*ecdsa.PrivateKey
	for i := range keys {
		var err error
		if keys[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: called}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	caDER := sign(ca, ca, keys[0], keys[0])
	a := authority{
		pool: x509.NewCertPool(), file: filepath.Join(dir, called+".pem"),
		server: tls.Certificate{Certificate: [][]byte{sign(server, ca, keys[1], keys[0])}, PrivateKey: keys[1]},
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
	a.pool.AppendCertsFromPEM(text)
	writeFile(t, a.file, text, 0o644)
	return a
}

// TestRegistryOverTLS pulls from a registry with a certificate of a private CA
// and a password: what is missing is named, and nothing is fetched then.
func TestRegistryOverTLS(t *testing.T) {
	dir := t.TempDir()
	ours, another := newAuthority(t, dir, "ours"), newAuthority(t, dir, "another")
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0))) //nolint:forbidigo // what the registry takes
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "user" || password != "correct" {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{ours.server}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0) //nolint:forbidigo // what the server takes
	server.StartTLS()
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "https://")
	ref, err := name.NewTag(host + "/x:1")
	if err != nil {
		t.Fatal(err)
	}
	made := imageOf(t, map[string][]byte{"bin/sh": []byte("#!")}, nil)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ours.pool}}
	t.Cleanup(transport.CloseIdleConnections)
	if err := remote.Write(ref, made, remote.WithTransport(transport), remote.WithAuth(&authn.Basic{Username: "user", Password: "correct"})); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, ca, password string
		says               []string // of the error; none is success
	}{
		{name: "trusted", ca: ours.file, password: "correct"},
		{name: "of no known authority", password: "correct", says: []string{host + " shows a certificate that this machine does not trust", "SSL_CERT_FILE"}},
		{name: "of another authority", ca: another.file, password: "correct", says: []string{"certificate that this machine does not trust", "unknown authority"}},
		{name: "a wrong password", ca: ours.file, password: "wrong", says: []string{"docker login " + host}},
		{name: "no password", ca: ours.file, says: []string{"docker login " + host}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t)
			m.env = append(m.env, "DOCKER_HOST=unix:///no/such.sock")
			if tt.ca != "" {
				m.env = append(m.env, "SSL_CERT_FILE="+tt.ca)
			}
			if tt.password != "" {
				folder := filepath.Join(m.home, ".docker")
				auth := base64.StdEncoding.EncodeToString([]byte("user:" + tt.password))
				if err := os.MkdirAll(folder, 0o700); err != nil {
					t.Fatal(err)
				}
				writeFile(t, filepath.Join(folder, "config.json"), fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, auth), 0o600)
			}
			out := m.run(t, "images", "pull", ref.String())
			if tt.says == nil {
				out.want(t, 0)
				if want := ref.String() + " " + digestOf(t, made) + "\n"; out.stdout != want {
					t.Errorf("pull says %q, want %q", out.stdout, want)
				}
				return
			}
			if out.status == 0 {
				t.Errorf("it was pulled: %s", out.stdout)
			}
			for _, want := range tt.says {
				if !strings.Contains(out.stderr, want) {
					t.Errorf("the error lacks %q:\n%s", want, out.stderr)
				}
			}
			if list := m.cached(t); len(list) > 0 {
				t.Errorf("it is cached: %v", list)
			}
		})
	}
}
