package oauth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/caisson-run/caisson/limits/state"
)

// Store keeps servers' tokens, each in a file that only its owner can read. It is
// safe for concurrent use, also by several processes.
type Store struct{ dir string }

// NewStore returns the store in a directory, which is created with the first token.
func NewStore(dir string) *Store { return &Store{dir} }

// lockTime bounds the wait for another process to refresh the same token.
const lockTime = requestTime + 10*time.Second

const maxFileBytes = 256 << 10

// storedToken is a token with what it takes to refresh it. It was issued for one
// server at one URL, by the authorization server at TokenURL, and is used with no
// other.
type storedToken struct {
	Server       string           `json:"server"`
	URL          string           `json:"url"`
	TokenURL     string           `json:"token_url"`
	AuthStyle    oauth2.AuthStyle `json:"auth_style"`
	ClientID     string           `json:"client_id"`
	ClientSecret string           `json:"client_secret,omitempty"`
	AccessToken  string           `json:"access_token"`
	RefreshToken string           `json:"refresh_token,omitempty"`
	Expiry       time.Time        `json:"expiry,omitzero"`
}

// expiryMargin is how long before its end a token counts as expired.
const expiryMargin = 10 * time.Second

func (t *storedToken) isValid() bool {
	return t.AccessToken != "" && (t.Expiry.IsZero() || time.Now().Add(expiryMargin).Before(t.Expiry))
}

// takeAnswer stores an authorization server's answer in t. It keeps a refresh token
// that is not replaced.
func (t *storedToken) takeAnswer(answer *oauth2.Token) {
	t.AccessToken, t.Expiry = answer.AccessToken, answer.Expiry
	if answer.RefreshToken != "" {
		t.RefreshToken = answer.RefreshToken
	}
}

// tokenPath returns the file of a token. Server names have only letters, digits,
// "-" and "_".
func (s *Store) tokenPath(server, url string) string {
	sum := sha256.Sum256([]byte(url))
	return filepath.Join(s.dir, server+"."+hex.EncodeToString(sum[:8])+".json")
}

// loadToken returns a token, or nil if none is stored.
func (s *Store) loadToken(server, url string) (*storedToken, error) {
	path := s.tokenPath(server, url)
	text, err := state.Read(path, maxFileBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read token %s: %w", path, err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("read token: others than its owner have rights to %s", path)
	}
	var t storedToken
	if json.Unmarshal(text, &t) != nil || t.Server != server || t.URL != url { // err could quote it
		return nil, fmt.Errorf("read token: %s does not hold the token of the server", path)
	}
	return &t, nil
}

// saveToken replaces a token atomically. The caller holds its lock.
func (s *Store) saveToken(t *storedToken) error {
	if err := state.ReplaceJSON(s.tokenPath(t.Server, t.URL), t); err != nil {
		return fmt.Errorf("store token: %w", err)
	}
	return nil
}

// withLock calls f while it holds the lock of a token.
func (s *Store) withLock(ctx context.Context, server, url string, f func() error) error {
	lock, err := state.Acquire(ctx, s.tokenPath(server, url)+".lock", lockTime)
	if err != nil {
		return err
	}
	return errors.Join(f(), lock.Release())
}

// Remove removes a server's tokens, at any URL, and reports whether it had any.
func (s *Store) Remove(ctx context.Context, server string) (found bool, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read tokens: %w", err)
	}
	var failed []error
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), server+".") || !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		found = true
		path := filepath.Join(s.dir, e.Name())
		lock, err := state.Acquire(ctx, path+".lock", lockTime)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		failed = append(failed, os.Remove(path), lock.Release())
	}
	return found, errors.Join(failed...)
}

// Secrets returns the values that no output may contain: the server's tokens at a
// URL.
func (s *Store) Secrets(server, url string) []string {
	t, err := s.loadToken(server, url)
	if err != nil || t == nil {
		return nil
	}
	return t.secretValues()
}

func (t *storedToken) secretValues() []string {
	return slices.DeleteFunc([]string{t.AccessToken, t.RefreshToken, t.ClientSecret}, func(v string) bool { return v == "" })
}
