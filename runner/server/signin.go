package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

const (
	// SignInCookie is the cookie of somebody who uses the page.
	SignInCookie = "__Host-caisson"
	// codeTime is how long a code can be used, cookieTime how long a cookie
	// lasts without a request.
	codeTime   = time.Minute
	cookieTime = 12 * time.Hour
	// maxCodes and maxCookies are the most codes and cookies of one token. A
	// new one replaces the oldest.
	maxCodes, maxCookies = 16, 64
	// A code has codeLetters letters of 5 bits.
	codeLetters = 16
)

// signIns turns codes that clients ask for with their tokens into the cookies
// of browsers. It keeps only hashes. Wrong codes have no consequence: 80 bits
// can't be guessed in a minute, and a bound on tries would let everybody who
// reaches the port cancel the sign-ins of others. It is safe for concurrent use.
type signIns struct {
	// hosts has a name of this machine for each client's label that only its holder
	// knows. Ports don't separate cookies: under a name that others know, the
	// server of another user on another port would get them.
	hosts   map[string]string
	mu      sync.Mutex
	codes   map[[sha256.Size]byte]signIn
	cookies map[[sha256.Size]byte]signIn
	// used maps the codes that were used to their cookies, until the codes
	// would have expired.
	used map[[sha256.Size]byte]usedCode
}

type usedCode struct {
	cookie [sha256.Size]byte
	until  time.Time
}

type signIn struct {
	client
	until time.Time
}

func newSignIns(clients []client) *signIns {
	s := &signIns{
		hosts: map[string]string{}, codes: map[[sha256.Size]byte]signIn{}, cookies: map[[sha256.Size]byte]signIn{}, used: map[[sha256.Size]byte]usedCode{},
	}
	for _, c := range clients {
		s.hosts[c.label] = strings.ToLower(rand.Text()[:12]) + "." + PageHost
	}
	return s
}

// knows reports whether a name is a client's.
func (s *signIns) knows(host string) bool {
	for _, known := range s.hosts {
		if strings.EqualFold(host, known) {
			return true
		}
	}
	return false
}

// putSignIn adds an entry to codes or cookies, and removes those that are over
// and the client's oldest beyond most.
func putSignIn(in map[[sha256.Size]byte]signIn, secret string, add signIn, most int) {
	var oldest [sha256.Size]byte
	count := 0
	for key, have := range in {
		switch {
		case !time.Now().Before(have.until):
			delete(in, key)
		case have.label == add.label:
			if count++; count == 1 || have.until.Before(in[oldest].until) {
				oldest = key
			}
		}
	}
	if count >= most {
		delete(in, oldest)
	}
	in[sha256.Sum256([]byte(secret))] = add
}

// newCode returns a code with which its holder signs in as a client, once.
func (s *signIns) newCode(from client) (code string, until time.Time) {
	code, until = rand.Text()[:codeLetters], time.Now().Add(codeTime)
	s.mu.Lock()
	defer s.mu.Unlock()
	putSignIn(s.codes, code, signIn{from, until}, maxCodes)
	return code, until
}

// useCode returns the cookie for a code, whose letters may have any case and
// spaces or hyphens between them. ok is false for an unknown or expired code,
// and at a host name that others know or that is another client's. If a code is
// used again, somebody else may have used it first, so its cookie ends.
func (s *signIns) useCode(code, host string) (cookie string, ok bool) {
	sum := hashCode(code)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if first, again := s.used[sum]; again && now.Before(first.until) {
		delete(s.cookies, first.cookie)
		return "", false
	}
	found, ok := s.codes[sum]
	if !ok || !now.Before(found.until) || strings.HasSuffix(host, "localhost") && !strings.EqualFold(host, s.hosts[found.label]) {
		return "", false
	}
	delete(s.codes, sum)
	maps.DeleteFunc(s.used, func(_ [sha256.Size]byte, u usedCode) bool { return !now.Before(u.until) })
	cookie = rand.Text() + rand.Text()
	s.used[sum] = usedCode{sha256.Sum256([]byte(cookie)), found.until}
	found.label += "/browser"
	found.until = now.Add(cookieTime)
	putSignIn(s.cookies, cookie, found, maxCookies)
	return cookie, true
}

// ownerOf returns the label of the client that a code is for, or "".
func (s *signIns) ownerOf(code string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if found := s.codes[hashCode(code)]; time.Now().Before(found.until) {
		return found.label
	}
	return ""
}

func hashCode(code string) [sha256.Size]byte {
	return sha256.Sum256([]byte(strings.ToUpper(strings.NewReplacer("-", "", " ", "").Replace(strings.TrimSpace(code)))))
}

// findUser returns the user whose cookie a request has, and keeps it valid.
func (s *signIns) findUser(r *http.Request) (User, bool) {
	cookies := r.CookiesNamed(SignInCookie)
	if len(cookies) != 1 {
		return User{}, false
	}
	value := cookies[0].Value
	sum := sha256.Sum256([]byte(value))
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.cookies[sum]
	if !ok || !time.Now().Before(found.until) {
		return User{}, false
	}
	if r.URL.Path != "/attention" { // tabs ask for it by themselves
		found.until = time.Now().Add(cookieTime)
		s.cookies[sum] = found
	}
	form := sha256.Sum256([]byte("form " + value))
	return User{found.client, hex.EncodeToString(form[:16]), sum}, true
}

func (s *signIns) isSignedIn(u User) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.cookies[u.cookie]
	return ok && time.Now().Before(found.until)
}

func (s *signIns) signOut(u User) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.cookies, u.cookie)
}

// User is somebody who uses the server's page in a browser. It has the roles of
// the token with which it signed in.
type User struct {
	client
	form   string
	cookie [sha256.Size]byte
}

// Label returns the label of the user's token, and where the user is:
// "alice/browser". Records name the user http:alice/browser.
func (u User) Label() string { return u.label }

// Has reports whether the user has a role.
func (u User) Has(r Role) bool { return u.hasRole(r) }

// Form returns the token that the user's forms must send as the field "form".
func (u User) Form() string { return u.form }

type userKey struct{}

// UserOf returns the signed-in user who sent a request to the server's [Pages].
// ok is false if nobody is signed in.
func UserOf(ctx context.Context) (_ User, ok bool) {
	u, ok := ctx.Value(userKey{}).(User)
	return u, ok
}

// SignIn is a code for the page.
type SignIn struct {
	Code    string    `json:"code" doc:"for the page's /login, once"`
	Expires time.Time `json:"expires_at"`
	Host    string    `json:"host" doc:"where to sign in, for a browser on the server's machine: a name that only this token's holder knows"`
}

func (s *signIns) addOperations(o operations) {
	huma.Register(o.api, o.newOperation(http.MethodPost, "/signins", "signIn", "Get a code for the page",
		"Returns a code that signs a browser in with this token's roles, once, within a minute: open /login#CODE.", http.StatusCreated),
		func(ctx context.Context, _ *struct{}) (*body[SignIn], error) {
			code, until := s.newCode(clientOf(ctx))
			return &body[SignIn]{SignIn{code, until.UTC(), s.hosts[clientOf(ctx).label]}}, nil
		})
}

// cookieOf returns the cookie of a user, or with "" the one that removes it.
func cookieOf(value string) *http.Cookie {
	c := &http.Cookie{Name: SignInCookie, Value: cmp.Or(value, "-"), Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode}
	if value == "" {
		c.MaxAge = -1
	}
	return c
}
