package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/sandbox/programs"
)

func newTraceAttestCommand(a *app) *cobra.Command {
	var f struct {
		Key       string `flag:"key" doc:"PEM file with the private key: Ed25519 or ECDSA on P-256 (default: a new one)"`
		PublicKey string `flag:"public-key" doc:"file to write the public key to; required without --key"`
		Output    string `flag:"output,o" doc:"file to write (default: standard output)"`
	}
	return newCommand(&cobra.Command{
		Use: "attest [flags] SESSION", Short: "Sign what a session did, for others to verify", Args: oneSession,
		Long: `Write a signed in-toto statement (DSSE envelope) about a session that has ended. Its subjects are
workspace.patch and trace.jsonl in the session's directory; its predicate has the attestation of the
sandbox, policy, model, limits, sources of the configuration, egress rules, counts of changes and
refused calls, the exit status, and the hash of the last record. It has paths, but no text of messages,
commands or files.

Without --key, a new key signs and is forgotten: keep its public key where nobody can replace it. The
private key must be outside of what commands in the session could read.

caisson trace verify --attestation FILE --public-key KEY SESSION verifies it.
`,
		Example: "  openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out ~/caisson.key\n" +
			"  caisson trace attest --key ~/caisson.key --public-key ~/caisson.pub -o session.intoto.json last",
		RunE: func(_ *cobra.Command, args []string) error {
			if f.Key == "" && f.PublicKey == "" {
				return newUsageError("name a key with --key, or use --public-key FILE to sign with a new key")
			}
			if private := resolvePath(f.Key); f.Key != "" && private != "" && (private == resolvePath(f.PublicKey) || private == resolvePath(f.Output)) {
				return newUsageError("%s is the private key: name another file with --public-key and -o", f.Key)
			}
			s, err := traceSession(a.environ, args[0])
			if err != nil {
				return err
			}
			statement, err := trace.Describe(s)
			if err != nil {
				return err
			}
			key, err := signingKey(f.Key, statement.Predicate)
			if err != nil {
				return newFailure(exitInput, err, "the attestation can't be signed: "+err.Error(), "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out FILE makes a key.")
			}
			envelope, err := statement.Sign(key)
			if err != nil {
				return err
			}
			if err := writePublicKey(f.PublicKey, key.Public()); err != nil {
				return err
			}
			out, err := openOutput(f.Output, "-o", "attestation")
			if err != nil {
				return err
			}
			if f.Output == "" {
				return writeJSON(a.stdout, envelope)
			}
			return errors.Join(writeJSON(out, envelope), out.Close())
		},
	}, &f, usesConfig|usesInput, statuses{exitFailed: "it can't be written, or the records were changed"})
}

// signingKey reads a private key, or makes one if path is "". It refuses a key that the
// session's commands could have read.
func signingKey(path string, p trace.Summary) (crypto.Signer, error) {
	if path == "" {
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	text, err := readPEM(path)
	if err != nil {
		return nil, err
	}
	readable := []string{p.Workspace}
	if p.Sandbox != nil {
		for _, m := range p.Sandbox.Mounts {
			readable = append(readable, m.Path)
		}
	}
	if dir := programs.FindWritable(readable, resolvePath(path)); dir != "" {
		return nil, fmt.Errorf("commands of the session could read %s, where %s lies", dir, path)
	}
	key, err := trace.ParseSigningKey(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return key, nil
}

// maxPEMBytes bounds files with keys.
const maxPEMBytes = 64 << 10

func readPEM(path string) ([]byte, error) { return readAtMost(path, maxPEMBytes) }

func writePublicKey(path string, key crypto.PublicKey) error {
	out, err := openOutput(path, "--public-key", "public key")
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(key)
	if err == nil {
		err = pem.Encode(out, &pem.Block{Type: "PUBLIC KEY", Bytes: der})
	}
	return errors.Join(err, out.Close())
}

// maxAttestationBytes bounds attestations that are read.
const maxAttestationBytes = 16 << 20

// verifyAttestation verifies that a file attests a session.
func verifyAttestation(a *app, s trace.Session, path, keyPath string) error {
	text, err := readAtMost(path, maxAttestationBytes)
	if err != nil {
		return newFailure(exitInput, err, "the attestation can't be read: "+err.Error(), "caisson trace attest writes one.")
	}
	keyText, err := readPEM(keyPath)
	var key crypto.PublicKey
	if err == nil {
		key, err = trace.ParsePublicKey(keyText)
	}
	if err != nil {
		return newFailure(exitInput, err, "the public key can't be read: "+err.Error(), "Name the file that caisson trace attest --public-key wrote.")
	}
	statement, err := trace.VerifyAttestation(s, text, key)
	if err != nil {
		return err
	}
	p := statement.Predicate
	return a.say("%s  ok: attested with %d records; last %s", p.Session, p.Records, p.Head)
}

// readAtMost reads a file of at most size bytes.
func readAtMost(path string, size int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, size+1))
	if err == nil && int64(len(text)) > size {
		err = fmt.Errorf("%s is larger than %d bytes", path, size)
	}
	return text, err
}
