package fleet

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

func startOptions(t testing.TB, o *server.Options) *server.Server {
	t.Helper()
	o.Host, o.Port, o.NoSigs, o.NoLog = "127.0.0.1", server.RANDOM_PORT, true, true
	s, err := server.NewServer(o)
	must(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server is not ready")
	}
	return s
}

// newCertificate returns a server certificate for 127.0.0.1, and the path of its file.
func newCertificate(t testing.TB) (c tls.Certificate, path string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	path = filepath.Join(t.TempDir(), "root.pem")
	must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, path
}

// TestConnect: users, tokens, keys and credentials files connect, others don't, and no error
// has a secret.
func TestConnect(t *testing.T) {
	const secret = "pa%2Fss-word"
	user, err := nkeys.CreateUser()
	must(t, err)
	seed, err := user.Seed()
	must(t, err)
	public, err := user.PublicKey()
	must(t, err)
	other, err := nkeys.CreateUser()
	must(t, err)
	otherSeed, err := other.Seed()
	must(t, err)
	write := func(name string, text []byte) string {
		path := filepath.Join(t.TempDir(), name)
		must(t, os.WriteFile(path, text, 0o600))
		return path
	}
	password := startOptions(t, &server.Options{Username: "user", Password: "pa/ss-word"}).Addr().String()
	token := startOptions(t, &server.Options{Authorization: "pa/ss-word"}).Addr().String()
	key := startOptions(t, &server.Options{Nkeys: []*server.NkeyUser{{Nkey: public}}}).Addr().String()

	operator, err := nkeys.CreateOperator()
	must(t, err)
	account, err := nkeys.CreateAccount()
	must(t, err)
	operatorKey, err := operator.PublicKey()
	must(t, err)
	accountKey, err := account.PublicKey()
	must(t, err)
	accountJWT, err := jwt.NewAccountClaims(accountKey).Encode(operator)
	must(t, err)
	userJWT, err := jwt.NewUserClaims(public).Encode(account)
	must(t, err)
	credentials, err := jwt.FormatUserConfig(userJWT, seed)
	must(t, err)
	resolver := &server.MemAccResolver{}
	must(t, resolver.Store(accountKey, accountJWT))
	claims := startOptions(t, &server.Options{TrustedKeys: []string{operatorKey}, AccountResolver: resolver}).Addr().String()

	for _, c := range []struct {
		name, url, credentials string
		works                  bool
	}{
		{"user", "nats://user:" + secret + "@" + password, "", true},
		{"second of a cluster", "nats://127.0.0.1:1, nats://user:" + secret + "@" + password, "", true},
		{"without a scheme", "user:" + secret + "@" + password, "", true},
		{"another password", "nats://user:" + secret + "2@" + password, "", false},
		{"no password", "nats://" + password, "", false},
		{"token", "nats://" + secret + "@" + token, "", true},
		{"another token", "nats://" + secret + "2@" + token, "", false},
		{"key", "nats://" + key, write("seed", seed), true},
		{"another key", "nats://" + key, write("seed", otherSeed), false},
		{"no key", "nats://" + key, "", false},
		{"credentials", "nats://" + claims, write("creds", credentials), true},
		{"credentials where a key is", "nats://" + claims, write("seed", seed), false},
		{"no credentials", "nats://" + claims, "", false},
		{"a file of something else", "nats://" + key, write("other", []byte(secret)), false},
		{"no file", "nats://" + key, filepath.Join(t.TempDir(), "none"), false},
		{"a slash in the password", "nats://user:pa/ss-word@" + password, "", false},
		{"an invalid escape", "nats://user:pa%ss-word@" + password, "", false},
		{"a space in the password", "nats://user:pa ss-word@" + password, "", false},
		{"a path", "nats://user:" + secret + "@" + password + "/path", "", false},
		{"a query", "nats://user:" + secret + "@" + password + "?a=b", "", false},
		{"nothing", "", "", false},
		{"closed", "nats://user:" + secret + "@127.0.0.1:1", "", false},
		{"TLS with a server that has none", "tls://user:" + secret + "@" + password, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := Connect(c.url, c.credentials, "test", func(string) {})
			if (err == nil) != c.works {
				t.Errorf("%v", err)
			}
			if err == nil {
				conn.Close()
				return
			}
			for _, part := range []string{"pa/ss", "pa%2", "pa%ss", "pa ss", "ss-word", ":pa", "%ss", string(seed), string(otherSeed)} {
				if strings.Contains(err.Error(), part) {
					t.Errorf("%q has a part of the secret", err)
				}
			}
		})
	}
}

// tlsVariable is the address of a server for a process of TestConnectTLS.
const tlsVariable = "CAISSON_TEST_TLS_SERVER"

// TestConnectTLS: a server's certificate is checked with the system's roots, which a
// variable may name.
func TestConnectTLS(t *testing.T) {
	if address := os.Getenv(tlsVariable); address != "" { // of the process below
		c, err := Connect("tls://"+address, "", "test", func(string) {})
		must(t, err)
		c.Close()
		return
	}
	certificate, root := newCertificate(t)
	s := startOptions(t, &server.Options{TLS: true, TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}}})
	for _, scheme := range []string{"tls://", "nats://"} { // the server asks for it
		if c, err := Connect(scheme+s.Addr().String(), "", "test", func(string) {}); !errors.As(err, new(*tls.CertificateVerificationError)) {
			t.Errorf("%s: %v, %v", scheme, c, err)
		}
	}
	program := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestConnectTLS$", "-test.v")
	program.Env = append(os.Environ(), tlsVariable+"="+s.Addr().String(), "SSL_CERT_FILE="+root)
	if out, err := program.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestConnectTLS") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestReconnect: a connection recovers after servers have refused its user, and reports
// contain no secrets.
func TestReconnect(t *testing.T) {
	o := &server.Options{Username: "user", Password: "pa/ss-word"}
	s := startOptions(t, o)
	port := s.Addr().(*net.TCPAddr).Port
	var mu sync.Mutex
	var texts []string
	c, err := Connect("nats://user:pa%2Fss-word@"+s.Addr().String(), "", "test", func(text string) {
		mu.Lock()
		defer mu.Unlock()
		texts = append(texts, text)
	})
	must(t, err)
	defer c.Close()
	end := func(s *server.Server) { // until the client has noticed
		s.Shutdown()
		s.WaitForShutdown()
		for start := time.Now(); c.IsConnected() && time.Since(start) < 10*time.Second; time.Sleep(time.Millisecond) {
		}
	}
	end(s)
	for _, password := range []string{"another", "pa/ss-word"} {
		next, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, Username: "user", Password: password, NoSigs: true, NoLog: true})
		must(t, err)
		next.Start()
		refused := func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(strings.Join(texts, "\n"), "NATS refuses: nats: authorization violation")
		}
		for start := time.Now(); !c.IsConnected() && time.Since(start) < 10*time.Second && (password == o.Password || !refused()); time.Sleep(20 * time.Millisecond) {
		}
		if c.IsConnected() != (password == o.Password) || !refused() {
			t.Errorf("password %q: connected: %v, refused: %v", password, c.IsConnected(), refused())
		}
		end(next)
	}
	mu.Lock()
	defer mu.Unlock()
	if text := strings.Join(texts, "\n"); strings.Contains(text, "ss-word") {
		t.Errorf("reported:\n%s", text)
	}
}
