package intoto

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/secure-systems-lab/go-securesystemslib/signerverifier"
	"google.golang.org/protobuf/encoding/protojson"
)

const script = `
version: 1
name: scripted-model
task: write a line
turns:
  - calls: [{tool: write_file, input: {path: line.txt, content: "one\n"}}]
  - text: Done.
`

// TestAttestationOfARun: a run's attestation, made with a key of openssl and with a new
// one, is verified by libraries that others wrote, and by Caisson. After one changed byte
// of patch, trace or attestation it is refused.
func TestAttestationOfARun(t *testing.T) {
	bin := os.Getenv("E2E_BIN")
	if bin == "" {
		bin = filepath.Join("..", "..", "bin")
	}
	bin, err := filepath.Abs(filepath.Join(bin, "caisson"))
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	workspace := filepath.Join(home, "workspace")
	if err := os.Mkdir(workspace, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "script.yaml"), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	try := func(name string, args ...string) ([]byte, error) {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir, cmd.Env = home, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}
		return cmd.CombinedOutput()
	}
	must := func(name string, args ...string) []byte {
		t.Helper()
		out, err := try(name, args...)
		if err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
		return out
	}
	must(bin, "run", "--policy", "ci", "--workspace", workspace, "--model", "replay/script.yaml")
	must("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", "p256.key")
	must("openssl", "genpkey", "-algorithm", "ed25519", "-out", "ed25519.key")
	dirs, err := filepath.Glob(filepath.Join(home, ".local", "state", "caisson", "sessions", "ses_*"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("sessions %q, %v", dirs, err)
	}

	if out, err := try(bin, "trace", "attest", "last"); err == nil || !bytes.Contains(out, []byte("--public-key")) {
		t.Errorf("without a key: %v\n%s", err, out)
	}
	must("cp", "p256.key", "workspace/stolen.key")
	if out, err := try(bin, "trace", "attest", "--key", "workspace/stolen.key", "last"); err == nil || !bytes.Contains(out, []byte("could read")) {
		t.Errorf("a key in the workspace: %v\n%s", err, out)
	}

	for _, flag := range []string{"--public-key", "-o"} {
		before, err := os.ReadFile(filepath.Join(home, "p256.key"))
		if err != nil {
			t.Fatal(err)
		}
		out, failed := try(bin, "trace", "attest", "--key", "p256.key", flag, "./p256.key", "last")
		if after, err := os.ReadFile(filepath.Join(home, "p256.key")); failed == nil || err != nil || !bytes.Equal(before, after) {
			t.Fatalf("%s overwrites the private key: %v\n%s", flag, err, out)
		}
	}

	for name, args := range map[string][]string{"P-256": {"--key", "p256.key"}, "Ed25519": {"--key", "ed25519.key"}, "new": nil} {
		t.Run(name, func(t *testing.T) {
			file, public := filepath.Join(home, name+".json"), filepath.Join(home, name+".pub")
			must(bin, append(append([]string{"trace", "attest"}, args...), "--public-key", public, "-o", file, "last")...)
			verifyElsewhere(t, file, public, true)
			verify := []string{"trace", "verify", "--attestation", file, "--public-key", public, "last"}
			must(bin, verify...)

			for _, changed := range []string{file, filepath.Join(dirs[0], "workspace.patch"), filepath.Join(dirs[0], "trace.jsonl")} {
				text, err := os.ReadFile(changed)
				if err != nil {
					t.Fatal(err)
				}
				other := bytes.Clone(text)
				at := len(other) / 2
				other[at] = 'A' + (other[at]-'A'+1)%26
				if err := os.WriteFile(changed, other, 0o600); err != nil {
					t.Fatal(err)
				}
				if out, err := try(bin, verify...); err == nil {
					t.Errorf("%s was changed, and is attested: %s", changed, out)
				}
				if changed == file {
					verifyElsewhere(t, file, public, false)
				}
				if err := os.WriteFile(changed, text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			must(bin, verify...)
		})
	}
}

// verifyElsewhere verifies a file with libraries of others.
func verifyElsewhere(t *testing.T, file, public string, good bool) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	keyText, err := os.ReadFile(public)
	if err != nil {
		t.Fatal(err)
	}
	key, err := signerverifier.LoadKey(keyText)
	if err != nil {
		t.Fatal(err)
	}
	var verifier dsse.Verifier
	if key.KeyType == signerverifier.ED25519KeyType {
		verifier, err = signerverifier.NewED25519SignerVerifierFromSSLibKey(key)
	} else {
		verifier, err = signerverifier.NewECDSASignerVerifierFromSSLibKey(key)
	}
	if err != nil {
		t.Fatal(err)
	}
	envelopes, err := dsse.NewEnvelopeVerifier(verifier)
	if err != nil {
		t.Fatal(err)
	}
	var e dsse.Envelope
	if err := json.Unmarshal(text, &e); err != nil {
		t.Fatal(err)
	}
	if _, err := envelopes.Verify(context.Background(), &e); (err == nil) != good {
		t.Fatalf("DSSE: %v", err)
	}
	if !good {
		return
	}
	payload, err := e.DecodeB64Payload()
	if err != nil {
		t.Fatal(err)
	}
	var statement intoto.Statement
	if err := protojson.Unmarshal(payload, &statement); err != nil {
		t.Fatal(err)
	}
	if err := statement.Validate(); err != nil {
		t.Fatal(err)
	}
	predicate := statement.GetPredicate().GetFields()
	if predicate["sandbox"].GetStructValue() == nil || predicate["policy"].GetStringValue() != "ci" || predicate["head"].GetStringValue() == "" {
		t.Errorf("predicate %v", predicate)
	}
}
