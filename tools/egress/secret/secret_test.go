package secret

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/tools/egress/rule"
)

const value = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"

func parseRules(t testing.TB, list ...string) []rule.Rule {
	t.Helper()
	var out []rule.Rule
	for _, s := range list {
		r, err := rule.ParseEgress(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// newSet returns a set with one secret for https://api.test/v1/, and its placeholder.
func newSet(t testing.TB, value, header string) (*Set, string) {
	t.Helper()
	s, err := New([]Secret{{Name: "KEY", Value: value, To: parseRules(t, "https://api.test/v1/"), Header: header}})
	if err != nil {
		t.Fatal(err)
	}
	_, placeholder, _ := strings.Cut(s.Environment()[0], "=")
	return s, placeholder
}

func target(t testing.TB, rawURL string) rule.Target {
	t.Helper()
	out, err := rule.ParseTarget(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestPlaceholder(t *testing.T) {
	for _, value := range []string{value, "sk-ant-api03-" + strings.Repeat("x", 90), strings.Repeat("z", 20), "hunter22", strings.Repeat("a", MaxBytes)} {
		_, a := newSet(t, value, "")
		_, b := newSet(t, value, "")
		if a == b || a == value || len(value) > 40 && len(a) != len(value) || len(a) < 26 {
			t.Errorf("the placeholders of %d bytes are %q and %q", len(value), a, b)
		}
		if strings.HasPrefix(value, "ghp_") != strings.HasPrefix(a, "ghp_") || strings.HasPrefix(value, "sk-ant-api03-") != strings.HasPrefix(a, "sk-ant-api03-") {
			t.Errorf("the public prefix is not kept: %q", a)
		}
	}
	to := parseRules(t, "https://api.test/")
	for name, s := range map[string]Secret{
		"short":        {Name: "K", Value: "1234567", To: to},
		"long":         {Name: "K", Value: strings.Repeat("a", MaxBytes+1), To: to},
		"no name":      {Value: value, To: to},
		"line break":   {Name: "K", Value: value + "\n", To: to},
		"header":       {Name: "K", Value: value, To: to, Header: "a b"},
		"cookie":       {Name: "K", Value: value, To: to, Header: "cookie"},
		"no URL":       {Name: "K", Value: value},
		"end to end":   {Name: "K", Value: value, To: parseRules(t, "tls://api.test")},
		"plain":        {Name: "K", Value: value, To: parseRules(t, "http://api.test/")},
		"git services": {Name: "K", Value: value, To: parseRules(t, "git+https://api.test/")},
	} {
		_, err := New([]Secret{s})
		if err == nil || strings.Contains(err.Error(), value) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New([]Secret{{Name: "A", Value: value, To: to}, {Name: "B", Value: value, To: to}}); err == nil {
		t.Error("two secrets have one value")
	}
}

// TestNeverShown is attack 31 for this package: a secret that is printed.
func TestNeverShown(t *testing.T) {
	s := Secret{Name: "KEY", Value: value}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", s, "list", []Secret{s})
	set, _ := newSet(t, value, "")
	for _, out := range []string{fmt.Sprintf("%v %+v %#v %s %q %d", s, s, s, s, s, []Secret{s}), string(text), log.String(), fmt.Sprint(set.CheckHost("a.test"))} {
		if strings.Contains(out, value) {
			t.Errorf("the value is in %s", out)
		}
	}
}

// TestApply is attack 29: placeholders elsewhere. P stands for the placeholder, and
// the positive control is the request whose header arrives with the value.
func TestApply(t *testing.T) {
	basic := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	s, p := newSet(t, value, "")
	lower := strings.ToLower(p)
	for _, tt := range []struct {
		name, url, header, value string
		want                     string // the header that is sent
		where                    string // of a refusal
	}{
		{"bearer", "https://api.test/v1/x", "Authorization", "Bearer " + p, "Bearer " + value, ""},
		{"token", "https://api.test/v1/x", "authorization", "token " + p, "token " + value, ""},
		{"alone", "https://api.test/v1/x", "Authorization", p, value, ""},
		{"password", "https://api.test/v1/x", "Authorization", "Basic " + basic("me:"+p), "Basic " + basic("me:"+value), ""},
		{"user", "https://api.test/v1/x", "Authorization", "basic " + basic(p+":"), "basic " + basic(value+":"), ""},
		{"none", "https://api.test/v1/x", "Authorization", "Bearer other", "Bearer other", ""},
		{"user and password", "https://api.test/v1/x", "Authorization", "Basic " + basic(p+":"+p), "", "header Authorization"},
		{"in a password", "https://api.test/v1/x", "Authorization", "Basic " + basic("me:x"+p), "", "header Authorization"},
		{"another scheme", "https://api.test/v1/x", "Authorization", "Digest " + p, "", "header Authorization"},
		{"more than it", "https://api.test/v1/x", "Authorization", "Bearer " + p + " x", "", "header Authorization"},
		{"another path", "https://api.test/v2/x", "Authorization", "Bearer " + p, "", "header Authorization"},
		{"another path in disguise", "https://api.test/v1/..%2fv2/x", "Authorization", "Bearer " + p, "", "header Authorization"},
		{"another host", "https://evil.test/v1/x", "Authorization", "Bearer " + p, "", "header Authorization"},
		{"another port", "https://api.test:8443/v1/x", "Authorization", "Bearer " + p, "", "header Authorization"},
		{"no TLS", "http://api.test:443/v1/x", "Authorization", "Bearer " + p, "", "header Authorization"},
		{"User-Agent", "https://api.test/v1/x", "User-Agent", p, "", "header User-Agent"},
		{"cookie", "https://api.test/v1/x", "Cookie", "a=" + p, "", "header Cookie"},
		{"another header", "https://api.test/v1/x", "X-Api-Key", p, "", "header X-Api-Key"},
		{"base64", "https://api.test/v1/x", "X-A", basic("xy" + p), "", "header X-A"},
		{"escaped", "https://api.test/v1/x", "X-A", fmt.Sprintf("%%%02x%s", p[0], p[1:]), "", "header X-A"},
		{"escaped twice", "https://api.test/v1/x", "X-A", fmt.Sprintf("%%25%02x%s", p[0], p[1:]), "", "header X-A"},
		{"name of a header", "https://api.test/v1/x", p, "1", "", "name of a header"},
		{"query", "https://api.test/v1/x?k=" + p, "X-A", "1", "", "query"},
		{"query escaped", "https://api.test/v1/x?k=" + fmt.Sprintf("%%%02x%s", p[0], p[1:]), "X-A", "1", "", "query"},
		{"query in base64", "https://api.test/v1/x?k=" + base64.RawURLEncoding.EncodeToString([]byte("a"+p)), "X-A", "1", "", "query"},
		{"query in hexadecimal", "https://api.test/v1/x?k=" + hex.EncodeToString([]byte(p)), "X-A", "1", "", "query"},
		{"path", "https://api.test/v1/" + p, "X-A", "1", "", "path"},
		{"path in lower case", "https://api.test/v1/" + lower, "X-A", "1", "", "path"},
		{"host", "https://" + strings.ReplaceAll(lower, "_", "-") + ".test/", "X-A", "1", "1", ""}, // another text
		{"a name below the host", "https://" + lower + ".api.test/", "X-A", "1", "", "host"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://placeholder.invalid/", nil)
		r.Host = "api.test"
		r.Header = http.Header{}
		r.Header.Set(tt.header, tt.value)
		r.Header.Set("Range", "bytes=0-9")
		to := target(t, tt.url)
		err := s.Apply(r, to, nil)
		if tt.where != "" {
			e, ok := errors.AsType[*MisplacedError](err)
			if !ok || e.Secret != "KEY" || e.Where != tt.where || strings.Contains(e.Error(), p) {
				t.Errorf("%s: %v, want a refusal for %s", tt.name, err, tt.where)
			}
			continue
		}
		if got := r.Header.Get(tt.header); err != nil || got != tt.want {
			t.Errorf("%s: %q, %v, want %q", tt.name, got, err, tt.want)
		}
		covered := to.Host == "api.test"
		if (r.Header.Get("Range") == "") != covered || (r.Header.Get("Accept-Encoding") == "identity") != covered {
			t.Errorf("%s: the codings are %v", tt.name, r.Header)
		}
	}
	s, p = newSet(t, value, "x-api-key")
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://placeholder.invalid/", nil)
	r.Header.Set("X-Api-Key", p)
	if err := s.Apply(r, target(t, "https://api.test/v1/"), nil); err != nil || r.Header.Get("X-Api-Key") != value {
		t.Errorf("a header of its own: %v, %v", r.Header, err)
	}
	r.Header = http.Header{"Authorization": {"Bearer " + p}}
	if err := s.Apply(r, target(t, "https://api.test/v1/"), nil); err == nil {
		t.Error("a placeholder is accepted in the header of another secret")
	}
	var none *Set
	if err := none.Apply(r, target(t, "https://api.test/v1/"), nil); err != nil || none.Covers(rule.Origin{}) || none.Environment() != nil {
		t.Error("a nil set has secrets")
	}
}

// spellings returns texts that amount to a placeholder.
func spellings(p string) map[string]string {
	var escaped, unicode strings.Builder
	for _, c := range []byte(p) {
		fmt.Fprintf(&escaped, "%%%02X", c)
		fmt.Fprintf(&unicode, `\u%04x`, c)
	}
	encoded := base64.StdEncoding.EncodeToString([]byte("key=" + p + "&"))
	return map[string]string{
		"plain": p, "escaped": escaped.String(), "JSON": unicode.String(), "base64": encoded, "base64 in lines": encoded[:20] + "\r\n" + encoded[20:],
		"hexadecimal": hex.EncodeToString([]byte(p)),
	}
}

// pieces is a reader that returns a text in pieces.
type pieces struct {
	list []string
}

func (r *pieces) Read(p []byte) (int, error) {
	if len(r.list) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.list[0])
	r.list[0] = r.list[0][n:]
	if r.list[0] == "" {
		r.list = r.list[1:]
	}
	return n, nil
}

func (*pieces) Close() error { return nil }

// drawPieces cuts a text at up to 5 places.
func drawPieces(t *rapid.T, text string) *pieces {
	r := &pieces{}
	for range 5 {
		if text == "" {
			break
		}
		n := rapid.IntRange(1, len(text)).Draw(t, "piece")
		r.list = append(r.list, text[:n])
		text = text[n:]
	}
	if text != "" {
		r.list = append(r.list, text)
	}
	return r
}

// TestBody checks that a body with a placeholder, in any spelling and however it is
// split, is sent only to the secret's own host, and that other bodies pass unchanged.
func TestBody(t *testing.T) {
	s, p := newSet(t, value, "")
	forms := spellings(p)
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(append([]string{"none", "almost"}, "plain", "escaped", "JSON", "base64", "base64 in lines", "hexadecimal")).Draw(t, "spelling")
		form := forms[name]
		if name == "almost" {
			form = p[:len(p)-1]
		}
		filler := rapid.StringN(0, 60, 60)
		text := filler.Draw(t, "before") + form + "." + filler.Draw(t, "after")
		var reported *MisplacedError
		r := &http.Request{Method: http.MethodPost, Header: http.Header{}, Body: drawPieces(t, text)}
		host := rapid.SampledFrom([]string{"api.test", "other.test"}).Draw(t, "host")
		to, err := rule.ParseTarget("https://" + host + "/v1/")
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Apply(r, to, func(e *MisplacedError) { reported = e }); err != nil {
			t.Fatal(err)
		}
		sent, err := io.ReadAll(iotest.OneByteReader(r.Body))
		if name == "none" || name == "almost" || host == "api.test" {
			if err != nil || string(sent) != text || reported != nil {
				t.Fatalf("%q was sent as %q, %v", text, sent, err)
			}
			return
		}
		if e, ok := errors.AsType[*MisplacedError](err); !ok || reported != e || e.Where != "body" {
			t.Fatalf("%q was sent: %q, %v", text, sent, err)
		}
		if strings.Contains(string(sent), p) || strings.Contains(string(sent), form) {
			t.Fatalf("the placeholder was sent: %q", sent)
		}
	})
}

// TestTrailer checks the trailer of a request.
func TestTrailer(t *testing.T) {
	s, p := newSet(t, value, "")
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("body"))
	r.Trailer = http.Header{"X-End": nil}
	if err := s.Apply(r, target(t, "https://api.test/v1/"), nil); err != nil {
		t.Fatal(err)
	}
	r.Trailer.Set("X-End", p)
	_, err := io.ReadAll(r.Body)
	if e, ok := errors.AsType[*MisplacedError](err); !ok || e.Where != "trailer X-End" {
		t.Errorf("a placeholder in a trailer: %v", err)
	}
}

// TestHide is attack 30: values on their way back.
func TestHide(t *testing.T) {
	for _, value := range []string{value, "short+/&1", `quote"<and>\` + strings.Repeat("k", 30), strings.Repeat("ab", 20)} {
		s, p := newSet(t, value, "")
		quoted, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		rapid.Check(t, func(t *rapid.T) {
			filler := rapid.StringOfN(rapid.RuneFrom([]rune("ab{\"g_hp1 ")), 0, 30, -1)
			forms := []string{
				value, url.QueryEscape(value), string(quoted), base64.StdEncoding.EncodeToString([]byte("me:" + value)),
				base64.URLEncoding.EncodeToString([]byte("x" + value + "y")), hex.EncodeToString([]byte(value)),
			}
			text := ""
			for _, form := range rapid.SliceOfN(rapid.SampledFrom(forms), 0, 3).Draw(t, "forms") {
				text += filler.Draw(t, "filler") + form
			}
			text += filler.Draw(t, "end")
			res := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"X-Echo": {text}}, Body: drawPieces(t, text), Trailer: http.Header{"X-End": {value}}}
			if err := s.Hide(res, rule.Origin{Scheme: "https", Host: "api.test", Port: 443}); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(res.Body)
			if err != nil || len(got) != len(text) {
				t.Fatalf("%q: %d bytes became %d, %v", text, len(text), len(got), err)
			}
			inner := string(base64Inner(base64.RawStdEncoding, value, 0))
			for _, out := range []string{string(got), res.Header.Get("X-Echo"), res.Trailer.Get("X-End")} {
				for _, form := range append(forms, inner) {
					if strings.Contains(out, form) {
						t.Fatalf("%q is in %q", form, out)
					}
				}
			}
			if text == "" {
				return
			}
			if want := string(replaceEchoes([]byte(text), s.entries[0].echoes)); string(got) != want {
				t.Fatalf("in pieces %q, whole %q", got, want)
			}
			if len(p) == len(value) && strings.Contains(text, value) && !strings.Contains(string(got), p) {
				t.Fatalf("%q has no placeholder", got)
			}
		})
	}
}

func TestHideCodings(t *testing.T) {
	s, p := newSet(t, value, "")
	o := rule.Origin{Scheme: "https", Host: "api.test", Port: 443}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = io.WriteString(w, "the key is "+value)
	_ = w.Close()
	res := &http.Response{StatusCode: http.StatusOK, Status: "200 " + value, Header: http.Header{"Content-Encoding": {"GZIP"}, "X-" + http.CanonicalHeaderKey(value): {"1"}}, Body: io.NopCloser(&packed)}
	if err := s.Hide(res, o); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(res.Body); err != nil || string(text) != "the key is "+p {
		t.Errorf("gzip: %q, %v", text, err)
	}
	if len(res.Header) != 0 || res.ContentLength != -1 || strings.Contains(res.Status, value) {
		t.Errorf("gzip: %v, %d bytes, %s", res.Header, res.ContentLength, res.Status)
	}
	for _, coding := range []string{"br", "zstd", "gzip, br", "x"} {
		res := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Encoding": {coding}}, Body: http.NoBody}
		if _, ok := errors.AsType[*CodingError](s.Hide(res, o)); !ok {
			t.Errorf("coding %s is passed on", coding)
		}
	}
	o.Host = "other.test"
	if err := s.Hide(&http.Response{Header: http.Header{"Content-Encoding": {"br"}}, Body: http.NoBody}, o); err != nil {
		t.Errorf("another host: %v", err)
	}
	rec := httptest.NewRecorder()
	o.Host = "api.test"
	hidden, finish := s.HideWriter(rec, o)
	hidden.Header().Set("Link", value)
	hidden.WriteHeader(http.StatusOK)
	if got := rec.Result().Header.Get("Link"); got != p {
		t.Errorf("the header of a response is %q", got)
	}
	hidden.Header().Set("Late", value)
	finish()
	if got := hidden.Header().Get("Late"); got != p {
		t.Errorf("a late header is %q", got)
	}
}

func TestGitHeader(t *testing.T) {
	s, p := newSet(t, value, "")
	h, ok := s.GitHeader("https://api.test/v1/org/")
	_, encoded, _ := strings.Cut(h, "Basic ")
	if plain, err := base64.StdEncoding.DecodeString(encoded); !ok || err != nil || string(plain) != "x-access-token:"+p {
		t.Errorf("the header is %q", h)
	}
	if h, ok := s.GitHeader("https://other.test/"); ok {
		t.Errorf("another host has the header %q", h)
	}
}

func BenchmarkBody(b *testing.B) {
	s, _ := newSet(b, value, "")
	to := target(b, "https://api.test/v1/")
	data := bytes.Repeat([]byte("some text of a request, with numbers 0123456789\n"), 1<<15)
	b.Run("sent", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			r := &http.Request{Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(data))}
			if err := s.Apply(r, to, nil); err != nil {
				b.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, r.Body)
		}
	})
	b.Run("received", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			res := &http.Response{Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(data))}
			if err := s.Hide(res, to.Origin); err != nil {
				b.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
		}
	})
}
