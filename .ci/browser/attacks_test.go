package browser

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// sessions counts the sessions of a server.
func (s *site) sessions() int {
	s.t.Helper()
	var list struct{ Sessions []struct{ ID string } }
	s.api("GET", "/sessions", nil, &list)
	return len(list.Sessions)
}

// TestForeignPages lets pages of other ports, of another name and of a name that was given
// this machine's address read the page, post to it and frame it, in the browser of somebody
// who is signed in. What the page itself does the same way is the control.
func TestForeignPages(t *testing.T) {
	t.Parallel()
	s := newSite(t, map[string]string{"cart": "  - text: Done.\n"})
	id, _ := s.session("cart", "secret task")
	s.await(id, "idle")
	before := s.sessions()

	got := make(chan http.Header, 100)
	foreign := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/cookies" {
			got <- r.Header
		}
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<!doctype html><title>foreign</title><p>foreign</p>")
	}))
	defer foreign.Close()
	port := foreign.URL[strings.LastIndex(foreign.URL, ":"):]
	ours := s.base[strings.LastIndex(s.base, ":"):]

	b := s.tab(t, true).signIn("alice")
	b.open("/")
	form := get[string](b, `document.querySelector("#new input[name=form]").value`)
	read := `fetch(%q, {credentials: "include"}).then(r => r.text(), e => "refused: " + e)`
	post := `fetch(%q, {method: "POST", credentials: "include", mode: "no-cors", headers: {"Content-Type": "application/x-www-form-urlencoded"},
		body: new URLSearchParams({form: %q, workspace: %q, mode: "overlay", message: "evil"}).toString()}).then(r => r.status, e => 0)`
	send := `new Promise(done => {
		const frame = document.body.appendChild(Object.assign(document.createElement("iframe"), {name: "target"}))
		const form = document.body.appendChild(Object.assign(document.createElement("form"), {method: "post", action: %q, target: "target"}))
		for (const [name, value] of Object.entries({form: %q, workspace: %q, mode: "overlay", message: "evil"})) form.append(Object.assign(document.createElement("input"), {name, value}))
		frame.onload = () => done(true)
		form.submit()
	})`
	framed := `new Promise(done => document.body.append(Object.assign(document.createElement("iframe"), {src: %q, onload: () => done(true)})))`

	for _, origin := range []string{"http://127.0.0.1" + port, "http://" + rebound + port, "http://caisson.localhost" + port, "http://other.localhost" + port, "http://" + rebound + ours, "http://caisson.localhost" + ours, "http://other.localhost" + ours} {
		b.open(origin + "/")
		if at := get[string](b, "location.origin"); at != origin {
			t.Fatalf("at %s, not at %s", at, origin)
		}
		for _, base := range []string{s.base, s.address, origin} {
			if base == origin && strings.HasSuffix(base, port) {
				continue
			}
			if text := get[string](b, fmt.Sprintf(read, base+"/")); strings.Contains(text, "secret task") {
				t.Errorf("%s reads %s: %s", origin, base, text)
			}
			get[int](b, fmt.Sprintf(post, base+"/", form, s.workspace))
		}
		if strings.HasSuffix(origin, ours) {
			continue // its refusal lets nothing be added to it
		}
		get[bool](b, fmt.Sprintf(send, s.base+"/", form, s.workspace))
		b.refused = nil
		get[bool](b, fmt.Sprintf(framed, s.base+"/s/"+id))
		if !slices.ContainsFunc(b.refusals(), func(r string) bool {
			return strings.HasPrefix(r, s.base) && strings.Contains(r, "ERR_BLOCKED_BY_RESPONSE")
		}) {
			t.Errorf("%s can frame the page", origin)
		}
		// The control: it can frame what allows it.
		get[bool](b, fmt.Sprintf(framed, foreign.URL+"/"))
		if slices.ContainsFunc(b.refusals(), func(r string) bool { return strings.HasPrefix(r, foreign.URL) }) {
			t.Errorf("%s can frame nothing: %q", origin, b.refusals())
		}
	}
	if n := s.sessions(); n != before {
		t.Errorf("foreign pages made %d sessions", n-before)
	}

	// The controls: the page reads itself, and its post counts.
	b.open("/")
	if text := get[string](b, fmt.Sprintf(read, s.base+"/")); !strings.Contains(text, "secret task") {
		t.Errorf("the page can't read itself: %s", text)
	}
	get[int](b, fmt.Sprintf(post, s.base+"/", form, s.workspace))
	if n := s.sessions(); n != before+1 {
		t.Errorf("the page's own post made %d sessions, want 1", n-before)
	}

	// The cookie is for nothing but the page, and no script sees it.
	cookies, err := chromedp.Run(b.ctx, func(ctx context.Context, t *chromedp.Target) ([]*network.Cookie, error) {
		out, err := cdp.Call(ctx, t, network.GetCookies, network.GetCookiesParams{URLs: []string{s.base + "/"}})
		return out.Cookies, err
	})
	if err != nil || len(cookies) != 1 {
		t.Fatalf("%d cookies, %v", len(cookies), err)
	}
	if c := cookies[0]; c.Name != "__Host-caisson" || !c.HTTPOnly || !c.Secure || c.SameSite != network.CookieSameSiteStrict || c.Path != "/" || !strings.HasPrefix(s.base, "http://"+c.Domain+":") {
		t.Errorf("the cookie is %+v", c)
	}
	if text := get[string](b, "document.cookie"); text != "" {
		t.Errorf("scripts see the cookie: %s", text)
	}
	for _, origin := range []string{"http://127.0.0.1" + port, "http://localhost" + port, "http://other.localhost" + port, "http://" + rebound + port} {
		b.open(origin + "/cookies")
		if text := (<-got).Get("Cookie"); text != "" {
			t.Errorf("%s gets the cookie: %s", origin, text)
		}
	}
}

func (b *tab) refusals() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.refused)
}

// hostile are texts that would add something to a page that takes them as HTML, as an address or
// as a style. None has a slash, so that each can be the name of a file.
var hostile = []string{
	`<script>window.hacked=1<\script>`,
	`<img src=x onerror=window.hacked=1>`,
	`"><svg onload=window.hacked=1><style>*{display:none}`,
	`' style='position:fixed' onmouseover='window.hacked=1' x='`,
	`<meta http-equiv=refresh content=0;url=data:,hacked>`,
	`<iframe srcdoc=hacked><base href=data:><link rel=stylesheet href=x>`,
	`<form action=x><input name=form><button>Allow`,
	`javascript:window.hacked=1`,
	`[link](javascript:window.hacked=1) ![image](x)`,
	"\u202egnp.exe \u2066hidden\u200b",
	"\x1b[2J\x1b]8;;data:,hacked\x1b",
	`{{template "top"}} ${window.hacked=1} &lt;b&gt; &#60;b>`,
	`<!-- --><b>]]>`,
	strings.Repeat("W", 200),
}

// shape counts the elements of a page by their names and what their attributes could do.
const shape = `(root => {
	const counts = {}
	for (const e of document.querySelectorAll(root + " *")) {
		const attributes = [...e.attributes].map(a => a.name === "href" || a.name === "src" || a.name === "action" ? a.name + "=" + a.value.split(/[:\/?#]/)[0] : a.name).filter(n => !/^(class|title|datetime|id|open)$/.test(n))
		const key = e.localName + " " + attributes.sort().join(" ")
		counts[key] = (counts[key] ?? 0) + 1
	}
	return counts
})`

// TestHostileTexts compares the pages of a session full of hostile texts, in the task, the
// answer, a call, its output, names of files, a diff and a reason, with those of one full of
// words. They have the same elements, and nothing is loaded, run or styled.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	play := func(texts []string) string {
		var out strings.Builder
		for _, text := range texts {
			command := "printf '%s\\n' " + shell(text) + " | tee " + shell(text+".txt")
			fmt.Fprintf(&out, "  - text: %s\n    calls: [{tool: shell, input: {command: %s}}]\n", quote("I say "+text), quote(command))
		}
		fmt.Fprintf(&out, "  - text: %s\n", quote("At last "+strings.Join(texts, " and ")))
		return out.String()
	}
	words := make([]string, len(hostile))
	for i, text := range hostile {
		words[i] = fmt.Sprintf("word%d", i) + strings.Repeat("x", len(text))[:max(len(text)-8, 1)]
		if strings.HasPrefix(text, "[") { // as much Markdown
			words[i] = "[link](word:word) ![image](x)"
		}
		if strings.ContainsAny(text, unseen) { // which the page says
			words[i] += "\u200b"
		}
	}
	s := newSite(t, map[string]string{"hostile": play(hostile), "words": play(words)})
	shapes := map[string]map[string]map[string]int{}
	for name, texts := range map[string][]string{"hostile": hostile, "words": words} {
		b := s.tab(t, true).signIn("alice")
		seen := map[string]map[string]int{}
		id, turn := s.session(name, "Do "+strings.Join(texts, " "))
		// What the server writes is counted without script: that one moves steps in and out.
		plain := s.tab(t, false).signIn("alice")
		look := func(view, root string) map[string]int {
			b.open("/s/" + id + view)
			b.shows(root)
			b.wait(`document.readyState === "complete"`)
			for _, fault := range get[[]string](b, "window.violations ?? []") {
				t.Errorf("%s%s: %s", name, view, fault)
			}
			if get[bool](b, "Boolean(window.hacked)") {
				t.Errorf("%s%s: a script of the text ran", name, view)
			}
			plain.open("/s/" + id + view)
			return get[map[string]int](plain, shape+"("+quote(root)+")")
		}
		for i := range texts {
			s.question(id)
			if i == 0 {
				seen["card"] = look("", "#questions")
			}
			if i == len(texts)-1 {
				s.answer(id, turn, "deny", reason(texts))
			} else {
				s.answer(id, turn, "allow", "")
			}
		}
		s.await(id, "idle")
		for _, view := range []string{"", "/changes", "/records"} {
			seen[view] = look(view, "main")
		}
		seen["/timeline"] = map[string]int{}
		for kind := range look("/timeline", "main") {
			seen["/timeline"][kind] = 1 // how many there are is a matter of time
		}
		b.check()
		plain.check()
		shapes[name] = seen

		shapes[name] = seen

		// The controls: what the texts try is seen where it happens, and the page's own script may set no style.
		b.open("/s/" + id)
		get[chromedp.Void](b, `document.querySelector("main").setAttribute("style", "color: red")`)
		b.wait("(window.violations ?? []).length > 0")
		get[chromedp.Void](plain, `document.querySelector("main").append(document.createElement("iframe"))`)
		if maps.Equal(get[map[string]int](plain, shape+`("main")`), look("/timeline", "main")) {
			t.Error("an element more isn't counted")
		}
	}
	for view, want := range shapes["words"] {
		got := shapes["hostile"][view]
		for _, kind := range slices.Sorted(maps.Keys(merge(want, got))) {
			if want[kind] != got[kind] {
				t.Errorf("%q: %d of <%s> with hostile texts, %d with words", view, got[kind], kind, want[kind])
			}
		}
	}
}

// unseen are characters that the page shows as escapes.
const unseen = "\x1b\u202e\u200b"

// reason joins the texts that an answer takes: others are refused.
func reason(texts []string) string {
	var out []string
	for _, text := range texts {
		if !strings.ContainsAny(text, unseen) {
			out = append(out, text)
		}
	}
	return strings.Join(out, " ")
}

func merge(a, b map[string]int) map[string]int {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// shell quotes a word.
func shell(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
