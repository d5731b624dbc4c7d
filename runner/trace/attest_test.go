package trace

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

// attested returns a session with its signed statement.
func attested(t *testing.T, key crypto.Signer) (Session, Envelope) {
	t.Helper()
	s := newShopSession(t, t.TempDir())
	statement, err := Describe(s)
	if err != nil {
		t.Fatal(err)
	}
	e, err := statement.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	return s, e
}

func newECDSAKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func encoded(t *testing.T, e Envelope) []byte {
	t.Helper()
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestAttestation signs a session with both kinds of keys. The statement names both
// files, and says how the session ran.
func TestAttestation(t *testing.T) {
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{"Ed25519": edKey, "ECDSA": newECDSAKey(t)} {
		t.Run(name, func(t *testing.T) {
			s, e := attested(t, key)
			got, err := VerifyAttestation(s, encoded(t, e), key.Public())
			if err != nil {
				t.Fatal(err)
			}
			patch, err := os.ReadFile(filepath.Join(s.Dir, record.PatchFile))
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.Sum256(patch)
			if len(got.Subject) != 2 || got.Subject[0].Name != record.PatchFile || got.Subject[0].Digest["sha256"] != hex.EncodeToString(sum[:]) || got.Subject[1].Name != record.TraceFile {
				t.Errorf("subjects %+v", got.Subject)
			}
			v, err := Verify(s)
			if err != nil {
				t.Fatal(err)
			}
			if p := got.Predicate; p.Session != s.ID || p.Head != v.Hash || p.Records != v.Records || p.Policy == "" || p.Sandbox == nil || p.Reason != "answered" || p.ExitStatus == nil {
				t.Errorf("predicate %+v", p)
			}
		})
	}
}

// TestChangesAfterAttestation changes the session or the attestation in every way that
// matters. Each is refused, and the unchanged ones are not.
func TestChangesAfterAttestation(t *testing.T) {
	key := newECDSAKey(t)
	write := func(name string, edit func([]byte) []byte) func(*testing.T, Session, *Envelope) {
		return func(t *testing.T, s Session, _ *Envelope) {
			t.Helper()
			path := filepath.Join(s.Dir, name)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, edit(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, tc := range map[string]struct {
		edit func(*testing.T, Session, *Envelope)
		want string // "" if it is still attested
	}{
		"nothing": {func(*testing.T, Session, *Envelope) {}, ""},
		"a second signature": {func(_ *testing.T, _ Session, e *Envelope) {
			e.Signatures = append([]Signature{{Sig: []byte("x")}}, e.Signatures...)
		}, ""},
		"a byte of the patch": {write(record.PatchFile, func(b []byte) []byte { b[len(b)-2] ^= 1; return b }), "workspace.patch was changed"},
		"no patch any more": {func(t *testing.T, s Session, _ *Envelope) {
			if err := os.Remove(filepath.Join(s.Dir, record.PatchFile)); err != nil {
				t.Fatal(err)
			}
		}, "workspace.patch can't be read"},
		"a byte of the trace": {write(record.TraceFile, func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"decision":"deny"`), []byte(`"decision":"dens"`), 1)
		}), "hash chain broken"},
		"the last record removed": {write(record.TraceFile, func(b []byte) []byte {
			return b[:bytes.LastIndexByte(b[:len(b)-1], '\n')+1]
		}), "trace.jsonl is not the file"},
		"a torn line added":  {write(record.TraceFile, func(b []byte) []byte { return append(b, `{"seq`...) }), "its last line is not whole"},
		"a byte signed":      {func(_ *testing.T, _ Session, e *Envelope) { e.Payload[len(e.Payload)-3] ^= 1 }, "not signed with this key"},
		"another type":       {func(_ *testing.T, _ Session, e *Envelope) { e.PayloadType = "text/plain" }, "not signed with this key"},
		"a byte of the sign": {func(_ *testing.T, _ Session, e *Envelope) { e.Signatures[0].Sig[9] ^= 1 }, "not signed with this key"},
		"no signature":       {func(_ *testing.T, _ Session, e *Envelope) { e.Signatures = nil }, "not signed with this key"},
		"another's key": {func(t *testing.T, s Session, e *Envelope) {
			statement, err := Describe(s)
			if err != nil {
				t.Fatal(err)
			}
			if *e, err = statement.Sign(newECDSAKey(t)); err != nil {
				t.Fatal(err)
			}
		}, "not signed with this key"},
		"another predicate": {func(t *testing.T, s Session, e *Envelope) {
			statement, err := Describe(s)
			if err != nil {
				t.Fatal(err)
			}
			statement.PredicateType = "https://slsa.dev/provenance/v1"
			if *e, err = statement.Sign(key); err != nil {
				t.Fatal(err)
			}
		}, "not about a session"},
		"another policy": {func(t *testing.T, s Session, e *Envelope) {
			statement, err := Describe(s)
			if err != nil {
				t.Fatal(err)
			}
			statement.Predicate.Policy = "strict"
			if *e, err = statement.Sign(key); err != nil {
				t.Fatal(err)
			}
		}, "says what the records don't"},
		"another session": {func(t *testing.T, _ Session, e *Envelope) { _, *e = attested(t, key) }, "the attestation is about ses_"},
	} {
		t.Run(name, func(t *testing.T) {
			s, e := attested(t, key)
			tc.edit(t, s, &e)
			_, err := VerifyAttestation(s, encoded(t, e), key.Public())
			if tc.want == "" && err != nil {
				t.Fatal(err)
			}
			if failed, ok := errors.AsType[*Error](err); tc.want != "" && (!ok || failed.Reason != NotAttested || !strings.Contains(err.Error(), tc.want)) {
				t.Fatalf("got %v, want %q", err, tc.want)
			}
		})
	}
	s, _ := attested(t, key)
	for _, text := range []string{"", "x", "null", "{}", "[]", `{"payload":"!"}`, `{"payloadType":"` + PayloadType + `","payload":"bnVsbA==","signatures":[{"sig":""}]}`} {
		if _, err := VerifyAttestation(s, []byte(text), key.Public()); err == nil {
			t.Errorf("%q is an attestation", text)
		}
	}
}

// TestNotAttested: of a session that runs, was changed or was pruned nothing is said.
func TestNotAttested(t *testing.T) {
	live := newWriter(t, t.TempDir())
	live.created("a task")
	log, err := os.Open(filepath.Join(live.dir, sessiondir.LogFile))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	if err := syscall.Flock(int(log.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	running, err := Find(live.state, live.id)
	if err != nil {
		t.Fatal(err)
	}
	killed := newWriter(t, t.TempDir())
	killed.created("a task")
	if p, err := Describe(killed.close()); err != nil || p.Predicate.ExitStatus != nil || len(p.Subject) != 1 {
		t.Errorf("a killed session: %+v, %v", p, err)
	}
	for want, s := range map[string]Session{
		"it is still running": running,
		"hash chain broken":   editedSession(t, func(b []byte) []byte { return bytes.Replace(b, []byte("deny"), []byte("dens"), 1) }),
		"has no records":      editedSession(t, func([]byte) []byte { return nil }),
		"its first record is": editedSession(t, func(b []byte) []byte {
			return bytes.Replace(b, []byte("session.created"), []byte("session.creates"), 1)[:bytes.IndexByte(b, '\n')+1]
		}),
	} {
		if _, err := Describe(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestKeysOfAttestations reads keys in the forms that openssl writes, and refuses others.
func TestKeysOfAttestations(t *testing.T) {
	encode := func(kind string, der []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	}
	pkcs8 := func(key any) []byte {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		return encode("PRIVATE KEY", der, err)
	}
	pkix := func(key any) []byte {
		der, err := x509.MarshalPKIXPublicKey(key)
		return encode("PUBLIC KEY", der, err)
	}
	good := newECDSAKey(t)
	sec1, err := x509.MarshalECPrivateKey(good)
	withParameters := append(encode("EC PARAMETERS", []byte{6, 1, 0}, nil), encode("EC PRIVATE KEY", sec1, err)...)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"PKCS #8": pkcs8(good), "SEC 1": withParameters, "Ed25519": pkcs8(edKey)} {
		if _, err := ParseSigningKey(text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if key, err := ParsePublicKey(pkix(good.Public())); err != nil || !good.PublicKey.Equal(key) {
		t.Errorf("public key: %v, %v", key, err)
	}
	for want, text := range map[string][]byte{
		"not Ed25519 or ECDSA": pkcs8(rsaKey), "on P-384, not P-256": pkcs8(other),
		"there is no PEM block": []byte("hello"), "it has ENCRYPTED SIGSTORE PRIVATE KEY": encode("ENCRYPTED SIGSTORE PRIVATE KEY", []byte("x"), nil),
		"it has PUBLIC KEY": pkix(good.Public()), "asn1": encode("PRIVATE KEY", []byte("x"), nil),
	} {
		if _, err := ParseSigningKey(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	for want, text := range map[string][]byte{
		"not Ed25519 or ECDSA": pkix(rsaKey.Public()), "on P-384, not P-256": pkix(other.Public()), "it has PRIVATE KEY": pkcs8(good),
	} {
		if _, err := ParsePublicKey(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
