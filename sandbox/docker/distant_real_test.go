package docker

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
	"github.com/caisson-run/caisson/sandbox/sandboxtest/privateengine"
	"github.com/caisson-run/caisson/tools/workspace"
)

// makeCertificates writes ca.pem, cert.pem and key.pem for a client, and
// returns the configuration of a server that accepts only that client.
func makeCertificates(t *testing.T, dir string) *tls.Config {
	t.Helper()
	var ca *x509.Certificate
	var caKey *ecdsa.PrivateKey
	issue := func(serial int64) ([]byte, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must(t, err)
		template := &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: fmt.Sprint("test ", serial)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, IsCA: ca == nil, BasicConstraintsValid: true,
		}
		if ca == nil {
			ca, caKey = template, key
		}
		der, err := x509.CreateCertificate(rand.Reader, template, ca, key.Public(), caKey)
		must(t, err)
		return der, key
	}
	write := func(name, kind string, der []byte) {
		must(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	}
	der, _ := issue(1)
	write("ca.pem", "CERTIFICATE", der)
	var err error
	ca, err = x509.ParseCertificate(der)
	must(t, err)
	der, key := issue(2)
	write("cert.pem", "CERTIFICATE", der)
	private, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	write("key.pem", "EC PRIVATE KEY", private)
	der, key = issue(3)
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
}

// delayingRelay relays TLS connections to a socket and delays each way without
// limiting the throughput. It returns its address.
func delayingRelay(t *testing.T, config *tls.Config, socket string, delay time.Duration) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	must(t, err)
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	running.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer near.Close()
				far, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
				if err != nil {
					return
				}
				defer far.Close()
				defer context.AfterFunc(ctx, func() { near.Close(); far.Close() })()
				var both sync.WaitGroup
				both.Go(func() { passOn(far, near, delay) })
				both.Go(func() { passOn(near, far, delay) })
				both.Wait()
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		l.Close()
		running.Wait()
	})
	return "tcp://" + l.Addr().String()
}

func passOn(to, from net.Conn, delay time.Duration) {
	type piece struct {
		data []byte
		due  time.Time
	}
	pieces := make(chan piece, 1<<14)
	go func() {
		defer close(pieces)
		for {
			b := make([]byte, 64<<10)
			n, err := from.Read(b)
			if n > 0 {
				pieces <- piece{b[:n], time.Now().Add(delay)}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range pieces {
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.data); err != nil {
			from.Close()
		}
	}
	time.Sleep(delay)
	if c, ok := to.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
}

// A session runs on a copy of the workspace on another machine's engine, 50 ms
// away.
func TestDistantEngine(t *testing.T) {
	e := privateengine.New(t)
	certs := t.TempDir()
	host := delayingRelay(t, makeCertificates(t, certs), e.Socket(), 25*time.Millisecond)
	_, image := importImageInto(t, e.Host(), treeTar(t, sandboxtest.WriteOpenTree))
	b := makeBed(t)
	t.Setenv("DOCKER_HOST", host)
	t.Setenv("DOCKER_TLS_VERIFY", "1")
	b.backend = b.open(t, Options{})
	if _, err := b.backend.Check(t.Context()); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("without certificates: %v", err)
	}
	t.Setenv("DOCKER_CERT_PATH", certs)
	b.backend = b.open(t, Options{})
	if info, err := b.backend.Check(t.Context()); err != nil || info.Local {
		t.Fatalf("%+v, %v", info, err)
	}
	text := strings.Repeat("x", 10_000)
	for i := range 5000 {
		dir := filepath.Join(b.workspace, "src", fmt.Sprint(i/50))
		must(t, os.MkdirAll(dir, 0o755))
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i%50)), []byte(text), 0o644))
	}
	must(t, os.WriteFile(filepath.Join(b.workspace, "src/77/7"), []byte(text+"needle"), 0o644))
	must(t, os.WriteFile(filepath.Join(b.workspace, "a"), []byte("a\n"), 0o644))
	spec := b.spec(t, newSession())
	spec.Image = images.Reference{Scheme: images.SchemeName, Value: image}
	overlaid := spec
	overlaid.Workspace.Mode = sandbox.ModeOverlay
	if _, err := b.backend.Create(t.Context(), overlaid); !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "mode copy") {
		t.Errorf("an overlay: %v", err)
	}
	layers := worktest.CreateLayers(t, &spec, sandbox.ModeCopy, b.state)
	began := time.Now()
	sb := b.create(t, spec)
	t.Logf("started with 50 MB after %v", time.Since(began))
	script := `cd /workspace; read a <a; read n h </etc/hosts; echo $a $n $HOME; echo more >>a; echo n >new; echo x >$HOME/x && echo home; echo x >/.caisson/guest || echo closed`
	if out, exit := worktest.Shell(t, sb, script); out != "a 127.0.0.1 /home/agent\nhome\nclosed\n" {
		t.Errorf("%q %v", out, exit.Status)
	}
	if _, err := sb.Apply(t.Context(), workspace.Op{Kind: workspace.OpDelete, Path: "src/1", Recursive: true}); err != nil {
		t.Error(err)
	}
	began = time.Now()
	files, found := 0, ""
	_, err := sb.View().Search(t.Context(), ".", workspace.SearchOptions{
		MaxFile: 1 << 20,
		Examine: func(_ context.Context, _ string, f workspace.File, err error) workspace.SearchResult {
			return workspace.SearchResult{Value: err == nil && strings.Contains(string(f.Data), "needle")}
		},
		Visit: func(name string, f workspace.SearchResult) error {
			files++
			if f.Value == true {
				found += name
			}
			return nil
		},
	})
	took := time.Since(began)
	t.Logf("searched %d files in %v", files, took)
	if err != nil || files != 4952 || found != "src/77/7" || took > time.Minute { // a question for each file takes minutes
		t.Errorf("searched %d files in %v, found %q: %v", files, took, found, err)
	}
	began = time.Now()
	must(t, sb.Collect(t.Context()))
	t.Logf("collected after %v", time.Since(began))
	must(t, sb.Destroy(context.Background()))
	want := []string{"modified a", "added new", "deleted src/1"}
	for f := range 50 {
		want = append(want, fmt.Sprintf("deleted src/1/%d", f))
	}
	requireCopyChanges(t, layers, spec.Workspace.Dir, want)
	b.nothingLeft(t, spec.Session)
	must(t, b.backend.Close())
}
