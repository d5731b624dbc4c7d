// Package secret keeps the keys of services out of the sandbox. Programs there have
// a placeholder, which becomes the key on the host: only in requests to the URLs
// that the key is for, and in one header.
//
// A placeholder anywhere else is refused, since a program that sends it there is
// likely to leak the key. It is also found in percent-encoding, base64 and
// hexadecimal. In responses of the key's hosts, the key is replaced, so that a host
// can't be used to show it to a program. A host that transforms the key in another
// way can; hosts are trusted with their own keys to that extent.
package secret

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/caisson-run/caisson/tools/egress/rule"
)

// Secret is a key of a service.
type Secret struct {
	// Name is the variable with the placeholder in the sandbox.
	Name string
	// Value is the key, of [MinBytes] to [MaxBytes]. Errors never contain it.
	Value string `json:"-"`
	// To are https rules for the URLs that the key is sent to.
	To []rule.Rule
	// Header is the header with the key, "" for Authorization.
	Header string
}

// Bounds of a secret's value, in bytes. A shorter one occurs in texts by chance.
const (
	MinBytes = 8
	MaxBytes = 4096
)

// Format writes the secret's name, whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "secret "+s.Name) }

// publicPrefixes are prefixes that show the kind of a key. Programs check them, and
// they are no secret.
var publicPrefixes = []string{
	"sk-ant-api03-", "sk-ant-", "sk-proj-", "sk-or-v1-", "sk_live_", "sk_test_", "rk_live_", "rk_test_", "sk-", "gsk_", "hf_", "xai-",
	"github_pat_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "glpat-", "gldt-", "npm_", "pypi-", "cio", "dckr_pat_",
	"xoxb-", "xoxp-", "xapp-", "AIza", "AKIA", "ya29.", "dop_v1_", "SG.", "shpat_", "lin_api_", "ntn_", "secret_", "eyJ",
}

// Set is the secrets of one session. Its methods are safe for concurrent use, and
// for a nil Set, which has none.
type Set struct{ entries []entry }

// entry is a secret with the spellings to look for.
type entry struct {
	Secret
	placeholder string
	misplaced   [][]byte // spellings of the placeholder
	echoes      []echo   // spellings of the value
	to          rule.Policy
}

// New returns the secrets with new placeholders. Its errors contain only names.
func New(list []Secret) (*Set, error) {
	s := &Set{}
	var failed []error
	for _, one := range list {
		if one.Header == "" {
			one.Header = "Authorization"
		}
		one.Header = http.CanonicalHeaderKey(one.Header)
		if err := one.checkFields(); err != nil {
			failed = append(failed, fmt.Errorf("secret %s: %w", one.Name, err))
			continue
		}
		if slices.ContainsFunc(s.entries, func(e entry) bool { return e.Name == one.Name || e.Value == one.Value }) {
			failed = append(failed, fmt.Errorf("secret %s: its name or value is another's too", one.Name))
			continue
		}
		placeholder := newPlaceholder(one.Value)
		s.entries = append(s.entries, entry{
			Secret: one, placeholder: placeholder, misplaced: spellText(placeholder), echoes: echoesOf(one.Value, placeholder), to: rule.Policy{Allow: one.To},
		})
	}
	return s, errors.Join(failed...)
}

func (s *Secret) checkFields() error {
	switch {
	case s.Name == "" || strings.ContainsAny(s.Name, "=\x00"):
		return errors.New("its name can't be a variable's")
	case len(s.Value) < MinBytes || len(s.Value) > MaxBytes:
		return fmt.Errorf("its value has %d bytes, want %d to %d", len(s.Value), MinBytes, MaxBytes)
	case !httpguts.ValidHeaderFieldValue(s.Value) || strings.TrimSpace(s.Value) != s.Value:
		return errors.New("its value can't be in a header: it holds a control character, or a space at an end")
	case !httpguts.ValidHeaderFieldName(s.Header):
		return fmt.Errorf("%q is not a header", s.Header)
	case slices.Contains(unfitHeaders, s.Header):
		return fmt.Errorf("header %s is one that servers echo or log, or that proxies use", s.Header)
	case len(s.To) == 0:
		return errors.New("it is for no URL")
	}
	for _, r := range s.To {
		if !strings.HasPrefix(r.String(), "https://") {
			return fmt.Errorf("it can't be for %s, only for https:// URLs", r)
		}
	}
	return nil
}

// unfitHeaders are headers that must not hold a secret.
var unfitHeaders = []string{
	"Cookie", "User-Agent", "Referer", "Origin", "Host", "Accept", "Accept-Encoding", "Accept-Language", "Content-Type", "Content-Length",
	"Transfer-Encoding", "Connection", "Proxy-Authorization", "Te", "Trailer", "Upgrade", "Range", "If-None-Match", "Via", "Forwarded", "X-Forwarded-For",
}

// newPlaceholder returns the value's public prefix and at least 128 random bits as
// letters and digits, padded to the length of the value. It leaves out the prefix
// if the value is hardly longer.
func newPlaceholder(value string) string {
	const bits = 26 // characters of base32, 130 bits
	prefix := ""
	for _, p := range publicPrefixes {
		if strings.HasPrefix(value, p) && len(value) >= len(p)+MinBytes {
			prefix = p
			break
		}
	}
	var b strings.Builder
	b.WriteString(prefix)
	for b.Len() < max(len(value), len(prefix)+bits) {
		b.WriteString(rand.Text()) // base32 digits
	}
	return b.String()[:max(len(value), len(prefix)+bits)]
}

// Environment returns the variables with the placeholders, as NAME=placeholder.
func (s *Set) Environment() []string {
	if s == nil {
		return nil
	}
	var env []string
	for _, e := range s.entries {
		if len(e.To) > 0 { // or it is another set's
			env = append(env, e.Name+"="+e.placeholder)
		}
	}
	return env
}

// Guarding returns a set with the secrets of s that also refuses the placeholders
// of others, wherever they are.
func (s *Set) Guarding(others ...*Set) *Set {
	all := &Set{}
	if s != nil {
		all.entries = slices.Clone(s.entries)
	}
	for _, other := range others {
		if other == nil {
			continue
		}
		for _, e := range other.entries {
			e.To, e.to, e.echoes = nil, rule.Policy{}, nil
			all.entries = append(all.entries, e)
		}
	}
	return all
}

// GitHeader returns the header, with a placeholder, for git's requests below a URL,
// and false if no secret is for the URL. It belongs in git's setting
// http.<url>.extraHeader.
func (s *Set) GitHeader(rawURL string) (string, bool) {
	t, err := rule.ParseTarget(rawURL)
	if s == nil || err != nil {
		return "", false
	}
	for i := range s.entries {
		e := &s.entries[i]
		switch {
		case !rule.AllowsTarget(e.To, t):
		case e.Header == "Authorization":
			return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:"+e.placeholder)), true
		default:
			return e.Header + ": " + e.placeholder, true
		}
	}
	return "", false
}

// MisplacedError reports a placeholder in the wrong place. It contains neither the
// placeholder nor the value.
type MisplacedError struct {
	Secret string // its name
	Where  string // such as "query", "header User-Agent", "body"
}

func (e *MisplacedError) Error() string {
	return fmt.Sprintf("the placeholder of secret %s is in the %s of a request", e.Secret, e.Where)
}

// CheckHost returns a *MisplacedError if a host's name contains a placeholder.
func (s *Set) CheckHost(host string) error { return s.checkText(host, "host") }

// checkText returns a *MisplacedError if a text contains a placeholder, in any
// case.
func (s *Set) checkText(text, where string) error {
	if s == nil {
		return nil
	}
	for range 3 { // as it is, and with escapes of escapes
		if name := s.findPlaceholder(text); name != "" {
			return &MisplacedError{Secret: name, Where: where}
		}
		plain := string(new(unescaper).appendPlain(nil, []byte(text)))
		if plain == text {
			break
		}
		text = plain
	}
	return nil
}

func (s *Set) findPlaceholder(text string) string {
	lower := strings.ToLower(text)
	for i := range s.entries {
		e := &s.entries[i]
		if strings.Contains(lower, strings.ToLower(e.placeholder)) {
			return e.Name
		}
		for _, spelling := range e.misplaced {
			if strings.Contains(text, string(spelling)) {
				return e.Name
			}
		}
	}
	return ""
}

// isFor reports whether the secret is for any URL at an origin.
func (e *entry) isFor(o rule.Origin) bool {
	return o.Scheme == "https" && e.to.DecideHost(o.Host, o.Port).Allowed()
}

// Covers reports whether a secret is for URLs at an origin. Responses of the origin
// must be searched, and only requests to it may have a placeholder.
func (s *Set) Covers(o rule.Origin) bool {
	return s != nil && slices.ContainsFunc(s.entries, func(e entry) bool { return e.isFor(o) })
}

// Apply puts the values of secrets into a request for a target. It returns a
// *MisplacedError if a placeholder is in the wrong place. The body and trailers are
// checked while they are sent: reading r.Body then fails with a *MisplacedError,
// which is also passed to misplaced. Bodies may have placeholders of secrets for the
// target's origin.
//
// A request to a secret's origin asks for the whole resource in identity coding, so
// that [Set.Hide] finds values in the response.
func (s *Set) Apply(r *http.Request, t rule.Target, misplaced func(*MisplacedError)) error {
	if s == nil || len(s.entries) == 0 {
		return nil
	}
	for _, part := range []struct{ text, where string }{{t.Host, "host"}, {r.Host, "host"}, {t.Path, "path"}, {t.Query, "query"}, {r.Method, "method"}} {
		if err := s.checkText(part.text, part.where); err != nil {
			return err
		}
	}
	for name, values := range r.Header {
		if err := s.checkText(name, "name of a header"); err != nil {
			return err
		}
		for i, value := range values {
			if replaced, ok := s.substituteHeader(name, value, t); ok {
				values[i] = replaced
			} else if err := s.checkText(value, "header "+name); err != nil {
				return err
			}
		}
	}
	for name := range r.Trailer {
		if err := s.checkText(name, "name of a trailer"); err != nil {
			return err
		}
	}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = newSentBody(s, r, t.Origin, misplaced)
	}
	if s.Covers(t.Origin) {
		r.Header.Set("Accept-Encoding", "identity")
		for _, name := range []string{"Range", "If-Range", "Request-Range", "Sec-Websocket-Extensions"} { // the last compresses
			r.Header.Del(name)
		}
	}
	return nil
}

// substituteHeader returns a header's value with a secret in place of its
// placeholder, and false if no secret may be there.
func (s *Set) substituteHeader(header, value string, t rule.Target) (replaced string, ok bool) {
	for i := range s.entries {
		e := &s.entries[i]
		if e.Header != http.CanonicalHeaderKey(header) || !rule.AllowsTarget(e.To, t) {
			continue
		}
		if value == e.placeholder {
			return e.Value, true
		}
		scheme, rest, _ := strings.Cut(value, " ")
		switch {
		case (strings.EqualFold(scheme, "Bearer") || strings.EqualFold(scheme, "token")) && rest == e.placeholder:
			return scheme + " " + e.Value, true
		case strings.EqualFold(scheme, "Basic"):
			if credentials, ok := e.substituteBasic(s, rest); ok {
				return scheme + " " + credentials, true
			}
		}
	}
	return "", false
}

// substituteBasic returns credentials with the value in place of the placeholder,
// as the user or the password.
func (e *entry) substituteBasic(s *Set, encoded string) (string, bool) {
	plain, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return "", false
	}
	user, password, ok := strings.Cut(string(plain), ":")
	switch {
	case !ok:
		return "", false
	case password == e.placeholder && s.checkText(user, "") == nil:
		password = e.Value
	case user == e.placeholder && s.checkText(password, "") == nil:
		user = e.Value
	default:
		return "", false
	}
	return base64.StdEncoding.EncodeToString([]byte(user + ":" + password)), true
}
