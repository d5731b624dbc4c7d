package server

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Token is a bearer token. Its label names its holder in records: confirmations
// answered with the token alice are by client http:alice.
type Token struct {
	Label, Value string
	Roles        []Role
}

// minTokenBytes is the shortest token: 128 random bits in base64.
const minTokenBytes = 22

var tokenLabel = lazyRegexp(`^[A-Za-z0-9._-]{1,64}$`)

// NewToken returns a token of 256 random bits with the given roles.
func NewToken(label string, roles ...Role) Token {
	return Token{Label: label, Value: "csn_" + rand.Text() + rand.Text(), Roles: roles}
}

// Validate reports why the token is invalid. The error does not contain its
// value.
func (t Token) Validate() error {
	switch {
	case !tokenLabel().MatchString(t.Label):
		return fmt.Errorf("token label %q must be 1 to 64 letters, digits, dots, _ and -", t.Label)
	case len(t.Value) < minTokenBytes:
		return fmt.Errorf("the token %s has %d characters, and needs %d at least: make one with openssl rand -hex 32", t.Label, len(t.Value), minTokenBytes)
	case strings.ContainsFunc(t.Value, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Errorf("the token %s has a space, or a character that is not printable ASCII", t.Label)
	case t.Roles != nil && len(t.Roles) == 0:
		return fmt.Errorf("the token %s: %w: the list is empty", t.Label, ErrRoles)
	}
	for _, r := range t.Roles {
		if !slices.Contains(allRoles(), r) {
			return fmt.Errorf("the token %s: %w: %q is not read, run, approve or admin", t.Label, ErrRoles, r)
		}
	}
	return nil
}

// keyring identifies clients by their tokens. It keeps hashes, whose comparison
// takes the same time for every token.
type keyring struct {
	clients []client
	sums    [][sha256.Size]byte
}

func newKeyring(tokens []Token) (*keyring, error) {
	k := &keyring{}
	seen := map[string]bool{}
	for _, t := range tokens {
		if err := t.Validate(); err != nil {
			return nil, err
		}
		if seen[t.Label] {
			return nil, fmt.Errorf("two tokens have the label %s", t.Label)
		}
		seen[t.Label] = true
		roles := t.Roles
		if roles == nil {
			roles = defaultRoles()
		}
		k.clients = append(k.clients, client{t.Label, slices.Clone(roles)})
		k.sums = append(k.sums, sha256.Sum256([]byte(t.Value)))
	}
	if len(k.clients) == 0 {
		return nil, errors.New("there is no token")
	}
	return k, nil
}

// findClient returns the client whose token a request bears; ok is false if it
// bears none, or an unknown one.
func (k *keyring) findClient(r *http.Request) (_ client, ok bool) {
	headers := r.Header.Values("Authorization")
	if len(headers) != 1 {
		return client{}, false
	}
	scheme, value, found := strings.Cut(headers[0], " ")
	if !found || !strings.EqualFold(scheme, "Bearer") {
		return client{}, false
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(value)))
	match := -1
	for i := range k.sums { // all of them, whichever matches
		match = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], k.sums[i][:]), i, match)
	}
	if match < 0 {
		return client{}, false
	}
	return k.clients[match], true
}
