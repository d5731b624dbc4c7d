package server

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func requestWith(t *testing.T, cookies ...string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	for _, value := range cookies {
		r.AddCookie(cookieOf(value))
	}
	return r
}

// A code is used once, however it is written, and within a minute. The cookie that it
// gives lasts as long as it is used, until its user signs out.
func TestCodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSignIns([]client{{label: "alice"}})
		alice := client{"alice", []Role{RoleRead, RoleApprove}}
		code, until := s.newCode(alice)
		if len(code) != codeLetters || until != time.Now().Add(codeTime) {
			t.Errorf("the code %q, until %s", code, until)
		}
		for _, wrong := range []string{"", "-", code[1:], code + "A", strings.Repeat("A", codeLetters)} {
			if _, ok := s.useCode(wrong, "127.0.0.1"); ok {
				t.Errorf("the code %q counts", wrong)
			}
		}
		cookie, ok := s.useCode(" "+strings.ToLower(code[:4])+"-"+code[4:8]+" "+code[8:]+"\n", "127.0.0.1")
		if !ok || len(cookie) < 52 {
			t.Fatalf("the code as a person types it: %q, %v", cookie, ok)
		}
		if _, ok := s.useCode(code, "127.0.0.1"); ok {
			t.Error("a code works twice")
		}
		// Somebody else may have used it first.
		if _, ok := s.findUser(requestWith(t, cookie)); ok {
			t.Error("the cookie of a code that is used twice counts")
		}
		code, _ = s.newCode(alice)
		for _, host := range []string{"localhost", "caisson.localhost", "a.caisson.localhost"} {
			if _, ok := s.useCode(code, host); ok {
				t.Errorf("the code counts at %s", host)
			}
		}
		if cookie, ok = s.useCode(code, strings.ToUpper(s.hosts["alice"])); !ok {
			t.Fatal("a code doesn't count at the name of its client")
		}
		u, ok := s.findUser(requestWith(t, cookie))
		if !ok || u.Label() != "alice/browser" || u.runnerUser().Name != "http:alice/browser" || !u.Has(RoleApprove) || u.Has(RoleRun) || u.Has(RoleAdmin) || len(u.Form()) != 32 || strings.Contains(cookie, u.Form()) {
			t.Errorf("the user is %+v, %v", u, ok)
		}
		for name, r := range map[string]*http.Request{"none": requestWith(t), "wrong": requestWith(t, cookie[1:]), "two": requestWith(t, cookie, cookie), "a code": requestWith(t, code)} {
			if _, ok := s.findUser(r); ok {
				t.Errorf("cookies: %s: they count", name)
			}
		}
		for range 3 {
			time.Sleep(cookieTime - time.Second)
			if _, ok := s.findUser(requestWith(t, cookie)); !ok {
				t.Fatal("a cookie that is used ends")
			}
		}
		time.Sleep(cookieTime)
		if _, ok := s.findUser(requestWith(t, cookie)); ok {
			t.Error("a cookie outlasts twelve hours without use")
		}
		code, _ = s.newCode(alice)
		time.Sleep(codeTime - time.Nanosecond)
		other, ok := s.useCode(code, "127.0.0.1")
		if !ok {
			t.Error("a code of 59 s is refused")
		}
		late, _ := s.newCode(alice)
		time.Sleep(codeTime)
		if _, ok := s.useCode(late, "127.0.0.1"); ok {
			t.Error("a code of a minute counts")
		}
		u, _ = s.findUser(requestWith(t, other))
		s.signOut(u)
		if _, ok := s.findUser(requestWith(t, other)); ok {
			t.Error("a cookie counts after signing out")
		}
	})
}

// The newest codes and cookies of a client stay; another client's are not touched.
func TestCodesAreBounded(t *testing.T) {
	s := newSignIns([]client{{label: "alice"}})
	bobs, _ := s.newCode(client{"bob", defaultRoles()})
	var codes []string
	for range maxCodes + 1 {
		code, _ := s.newCode(client{"alice", defaultRoles()})
		codes = append(codes, code)
	}
	if len(s.codes) != maxCodes+1 {
		t.Errorf("%d codes are kept", len(s.codes))
	}
	for i, code := range append(codes, bobs) {
		if _, ok := s.useCode(code, "127.0.0.1"); ok != (i > 0) {
			t.Errorf("code %d of %d works: %v", i, len(codes), ok)
		}
	}
	for i := range maxCookies {
		code, _ := s.newCode(client{"alice", defaultRoles()})
		if _, ok := s.useCode(code, "127.0.0.1"); !ok {
			t.Errorf("sign-in %d fails", i)
		}
	}
	if len(s.cookies) != maxCookies+1 {
		t.Errorf("%d cookies are kept, want %d of alice and one of bob", len(s.cookies), maxCookies)
	}
}

// A client gets a code with its token, and the cookie is one that no other host, port's
// page or script gets.
func TestSignInCookie(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	var got SignIn
	w.post("/signins", "").requireStatus(t, http.StatusCreated).decodeInto(t, &got)
	if left := time.Until(got.Expires); len(got.Code) != codeLetters || left <= 0 || left > codeTime {
		t.Errorf("got %+v", got)
	}
	w.do("", "POST", "/signins", "").requireProblem(t, http.StatusUnauthorized, "unauthorized")
	cookie, ok := w.server.SignIn(got.Code, "127.0.0.1")
	if !ok || cookie.Valid() != nil {
		t.Fatalf("%v, %v", cookie, ok)
	}
	want := fmt.Sprintf("__Host-caisson=%s; Path=/; HttpOnly; Secure; SameSite=Strict", cookie.Value)
	if cookie.String() != want {
		t.Errorf("the cookie is %s, want %s", cookie, want)
	}
	if _, ok := w.server.SignIn(got.Code, "127.0.0.1"); ok {
		t.Error("the code works twice")
	}
	if c := w.server.SignOut(User{}); c.MaxAge >= 0 || c.Name != SignInCookie {
		t.Errorf("signing out sets %s", c)
	}
	if code := w.server.NewCode(Token{Label: "alice"}); len(code) != codeLetters {
		t.Errorf("the server's own code is %q", code)
	}
	if code := w.server.NewCode(Token{Label: "nobody"}); code != "" {
		t.Errorf("an unknown token gets the code %q", code)
	}
}
