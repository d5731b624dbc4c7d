package trace

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

// These types name an attestation's parts to programs that verify it.
const (
	// PredicateType is the type of a [Summary] in a [Statement].
	PredicateType = "https://caisson.run/attestation/session/v1"
	// StatementType is the type of a [Statement]: in-toto's, version 1.
	StatementType = "https://in-toto.io/Statement/v1"
	// PayloadType is the media type of a [Statement] in an [Envelope].
	PayloadType = "application/vnd.in-toto+json"
)

// Envelope is a signed text in the form of DSSE 1.0 (secure-systems-lab/dsse).
//
//	{"payloadType":"application/vnd.in-toto+json","payload":"eyJfdHlwZSI6…","signatures":[{"sig":"MEUC…"}]}
type Envelope struct {
	PayloadType string `json:"payloadType"`
	Payload     []byte `json:"payload"`
	// Signatures sign the payload and its type. One valid signature is enough.
	Signatures []Signature `json:"signatures"`
}

// Signature is a signature in an [Envelope]. Others also write the ID of the
// key there, which is only a hint.
type Signature struct {
	Sig []byte `json:"sig"`
}

// Statement is an in-toto statement: what a session recorded, and the files
// that it produced.
type Statement struct {
	Type string `json:"_type"`
	// Subject has workspace.patch, if the session changed text, and trace.jsonl.
	Subject       []Subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     Summary   `json:"predicate"`
}

// Subject is a file with its SHA-256 in hexadecimal.
type Subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// Summary tells under which conditions a session ran, and how it ended. It has
// paths, but no text of messages, commands or files.
type Summary struct {
	Session string    `json:"session"`
	Version string    `json:"version"` // Caisson's
	Begun   time.Time `json:"begun"`
	// Last is the time of the last record.
	Last      time.Time `json:"last"`
	Workspace string    `json:"workspace"`
	// Records is the number of records, and Head the hash of the last one.
	Records int64  `json:"records"`
	Head    string `json:"head"`
	// Reason and ExitStatus tell how the session ended. They are absent if it
	// was killed.
	Reason     loop.StopReason `json:"reason,omitempty"`
	ExitStatus *int            `json:"exit_status,omitempty"`

	Model         loop.ModelInfo  `json:"model"`
	Profile       string          `json:"profile,omitempty"`
	Policy        string          `json:"policy"`
	OnPrompt      string          `json:"on_prompt"`
	Configuration []record.Source `json:"configuration"`
	Budget        record.Budget   `json:"budget"`
	SessionBudget record.Budget   `json:"session_budget,omitzero"`
	Egress        *record.Egress  `json:"egress,omitempty"`
	// Sandbox describes the last container, absent if none ran.
	Sandbox *sandbox.Attestation `json:"sandbox,omitempty"`
	// Denied counts refused calls.
	Denied  int                `json:"denied"`
	Changed record.ChangeCount `json:"changed,omitzero"`
}

// Describe returns the statement about a session as it is now. It verifies the
// records first. Errors are of type [*Error]: it refuses a session that is
// running, was changed or was pruned.
func Describe(s Session) (Statement, error) {
	v, err := Verify(s)
	if err != nil {
		return Statement{}, err
	}
	switch {
	case v.Damage != "":
		return Statement{}, notAttested(s, errors.New(v.Damage))
	case v.Live:
		return Statement{}, notAttested(s, errors.New("it is still running"))
	case s.Pruned:
		return Statement{}, notAttested(s, ErrPruned)
	case v.Records == 0:
		return Statement{}, &Error{Reason: NoRecords, Name: s.ID, Err: fs.ErrNotExist}
	}
	o, err := Read(s, nil)
	if err != nil {
		return Statement{}, err
	}
	switch {
	case o.Created == nil:
		return Statement{}, notAttested(s, errors.New("its first record is missing"))
	case o.Torn:
		return Statement{}, notAttested(s, errors.New("its last line is not whole; resuming the session removes it"))
	case o.Damage != "" || o.Hash != v.Hash:
		return Statement{}, notAttested(s, errors.New("its records changed while they were read"))
	}
	statement := Statement{Type: StatementType, PredicateType: PredicateType, Predicate: summarize(o)}
	patch, err := newSubject(record.PatchFile, filepath.Join(s.Dir, record.PatchFile))
	if err == nil {
		statement.Subject = append(statement.Subject, patch)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Statement{}, notAttested(s, err)
	}
	records, err := newSubject(record.TraceFile, s.Path)
	if err != nil {
		return Statement{}, notAttested(s, err)
	}
	statement.Subject = append(statement.Subject, records)
	return statement, nil
}

// Sign returns the statement, signed with a key that [ParseSigningKey] accepts.
func (s Statement) Sign(key crypto.Signer) (Envelope, error) {
	e := Envelope{PayloadType: PayloadType}
	var err error
	if e.Payload, err = json.Marshal(s); err != nil {
		return Envelope{}, fmt.Errorf("sign statement: %w", err)
	}
	digest, options := signedDigest(key.Public(), e)
	sig, err := key.Sign(rand.Reader, digest, options)
	if err != nil {
		return Envelope{}, fmt.Errorf("sign statement: %w", err)
	}
	e.Signatures = []Signature{{Sig: sig}}
	return e, nil
}

// VerifyAttestation verifies that an envelope is signed with a key that
// [ParsePublicKey] returned, and that the session's files are still the ones
// that it names. Errors are of type [*Error].
func VerifyAttestation(s Session, envelope []byte, key crypto.PublicKey) (Statement, error) {
	var e Envelope
	var got Statement
	if err := json.Unmarshal(envelope, &e); err != nil {
		return got, notAttested(s, fmt.Errorf("decode envelope: %w", err))
	}
	if !e.isSignedBy(key) {
		return got, notAttested(s, errors.New("the attestation is not signed with this key, or was changed"))
	}
	if err := json.Unmarshal(e.Payload, &got); err != nil {
		return got, notAttested(s, fmt.Errorf("decode statement: %w", err))
	}
	if e.PayloadType != PayloadType || got.Type != StatementType || got.PredicateType != PredicateType {
		return got, notAttested(s, fmt.Errorf("the signed text is %s, %s, %s: not about a session", e.PayloadType, got.Type, got.PredicateType))
	}
	want, err := Describe(s)
	if err != nil {
		return got, err
	}
	if got.Predicate.Session != want.Predicate.Session {
		return got, notAttested(s, fmt.Errorf("the attestation is about %s", got.Predicate.Session))
	}
	if err := compareSubjects(s, got.Subject, want.Subject); err != nil {
		return got, err
	}
	// The key may be anybody's: what is said of the session must be in its records.
	signed, err := json.Marshal(got.Predicate)
	if err != nil {
		return got, notAttested(s, err)
	}
	recorded, err := json.Marshal(want.Predicate)
	if err != nil {
		return got, notAttested(s, err)
	}
	if !bytes.Equal(signed, recorded) {
		return got, notAttested(s, errors.New("the attestation says what the records don't"))
	}
	return got, nil
}

func compareSubjects(s Session, signed, files []Subject) error {
	digests := map[string]string{}
	for _, f := range signed {
		digests[f.Name] = f.Digest["sha256"]
	}
	for _, f := range files {
		switch got, ok := digests[f.Name]; {
		case !ok:
			return notAttested(s, fmt.Errorf("the attestation doesn't name %s", f.Name))
		case got != f.Digest["sha256"]:
			return notAttested(s, fmt.Errorf("%s is not the file that was attested", f.Name))
		}
		delete(digests, f.Name)
	}
	for name := range digests {
		return notAttested(s, fmt.Errorf("%s was attested and is gone", name))
	}
	return nil
}

func summarize(o Overview) Summary {
	c := o.Created
	sum := Summary{
		Session: o.Session, Version: c.Version, Begun: o.Begun, Last: o.Last, Workspace: c.Workspace, Records: o.Records, Head: o.Hash,
		Model: c.Model, Profile: c.Profile, Policy: c.Policy, OnPrompt: c.OnPrompt, Configuration: c.Configuration,
		Budget: c.Budget, SessionBudget: c.SessionBudget, Egress: o.Egress, Sandbox: o.Sandbox, Denied: o.Denied,
	}
	if o.Ended != nil {
		sum.Reason, sum.ExitStatus, sum.Changed = o.Ended.Reason, &o.Ended.ExitStatus, o.Ended.ChangedCount
	}
	return sum
}

func newSubject(name, path string) (Subject, error) {
	sum, err := hashFile(path)
	return Subject{Name: name, Digest: map[string]string{"sha256": sum}}, err
}

func notAttested(s Session, err error) error {
	return &Error{Reason: NotAttested, Name: s.ID, Err: err}
}

// isSignedBy reports whether one of the signatures is good.
func (e Envelope) isSignedBy(key crypto.PublicKey) bool {
	digest, _ := signedDigest(key, e)
	for _, s := range e.Signatures {
		switch key := key.(type) {
		case ed25519.PublicKey:
			if ed25519.Verify(key, digest, s.Sig) {
				return true
			}
		case *ecdsa.PublicKey:
			if ecdsa.VerifyASN1(key, digest, s.Sig) {
				return true
			}
		}
	}
	return false
}

// signedDigest returns what is signed: DSSE's encoding of the payload with its
// type, or for ECDSA the SHA-256 of it.
func signedDigest(key crypto.PublicKey, e Envelope) ([]byte, crypto.SignerOpts) {
	text := fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(e.PayloadType), e.PayloadType, len(e.Payload), e.Payload)
	if _, ok := key.(ed25519.PublicKey); ok {
		return text, crypto.Hash(0)
	}
	sum := sha256.Sum256(text)
	return sum[:], crypto.SHA256
}

// ParseSigningKey returns the private key in a PEM file: Ed25519 or ECDSA on
// P-256, without a passphrase, in PKCS #8 or, for ECDSA, SEC 1.
func ParseSigningKey(text []byte) (crypto.Signer, error) {
	block, err := findBlock(text, "PRIVATE KEY", "EC PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	var key any
	if block.Type == "PRIVATE KEY" {
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	} else {
		key, err = x509.ParseECPrivateKey(block.Bytes)
	}
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("the key is a %T, not Ed25519 or ECDSA on P-256", key)
	}
	return signer, checkKey(signer.Public())
}

// ParsePublicKey returns the public key in a PEM file, of a kind that
// [ParseSigningKey] accepts.
func ParsePublicKey(text []byte) (crypto.PublicKey, error) {
	block, err := findBlock(text, "PUBLIC KEY")
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	return key, checkKey(key)
}

func checkKey(key crypto.PublicKey) error {
	switch key := key.(type) {
	case ed25519.PublicKey:
		return nil
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() {
			return nil
		}
		return fmt.Errorf("the key is on %s, not P-256", key.Curve.Params().Name)
	}
	return fmt.Errorf("the key is a %T, not Ed25519 or ECDSA on P-256", key)
}

// findBlock returns the first PEM block of one of some types.
func findBlock(text []byte, types ...string) (*pem.Block, error) {
	found := ""
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		if slices.Contains(types, block.Type) {
			return block, nil
		}
		found, text = fmt.Sprintf("; it has %s", block.Type), rest
	}
	return nil, fmt.Errorf("there is no PEM block %q%s", types[0], found)
}
