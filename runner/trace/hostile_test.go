package trace

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

// hostile are texts that would be elements, attributes, styles, escapes of a
// terminal, or invisible. Each is one line, so that it changes no count.
var hostile = []string{
	`<script>alert(1)</script>`,
	`<img src=x onerror=alert(1)>`,
	`"><svg/onload=alert(1)>`,
	`' onmouseover='alert(1)`,
	`</pre></details></style></title></textarea><iframe src="https://evil.example/"></iframe>`,
	`--><base href="https://evil.example/"><!--`,
	`<meta http-equiv="refresh" content="0;url=https://evil.example/">`,
	`<link rel=stylesheet href=https://evil.example/x.css>`,
	`{{.}} {{template "head"}} javascript:alert(1)`,
	`;background:url(https://evil.example/)}body{display:none}`,
	"\x1b]0;owned\x07\x1b[2J\x1b[31mred",
	"\u202etxt.exe\u2066 \u200b\u2028 \U000e0041 \u009b31m \ufeff",
	"\xff\xfe not UTF-8 \x00",
	`]]><![CDATA[`,
}

// newHostileSession returns a session with text in every place that others
// could have written.
func newHostileSession(t *testing.T, text string) Session {
	t.Helper()
	w := newWriter(t, t.TempDir())
	quoted, err := json.Marshal(map[string]string{"path": text})
	if err != nil {
		t.Fatal(err)
	}
	att := attestation()
	att.Image, att.Runtime, att.Lost, att.User, att.Capabilities = text, text, []string{text}, text, []string{text}
	w.put(0, record.ActorSystem, record.SessionCreated{
		Version: text, Task: text, Workspace: text, Image: text, Policy: text, Model: loop.ModelInfo{Provider: text, Model: text},
		Tools: []record.OfferedTool{{Name: tools.Name(text), Class: tools.Class(text), Runs: tools.Place(text)}}, Ignored: []record.Ignored{{Name: text, Why: text}},
		WorkspaceMode: text, Git: text, OnPrompt: text, FilesLoaded: []record.LoadedFile{{Path: text, Trust: text}},
	})
	w.put(0, record.ActorUser, record.TurnStarted{})
	for _, role := range []loop.Role{loop.RoleSystem, loop.RoleUser} {
		w.put(0, record.ActorUser, record.Message{Role: role, Blocks: []loop.Block{{Text: &loop.Text{Text: text}}}})
	}
	w.put(0, record.ActorAgent, record.ModelCallFailed{Class: loop.ErrorClass(text), Message: text})
	w.put(0, record.ActorAgent, record.Message{Role: loop.RoleAssistant, Blocks: []loop.Block{
		{Text: &loop.Text{Text: text}},
		{Thinking: &loop.Thinking{Text: text}},
		{ToolUse: &loop.ToolUse{ID: text, Name: tools.Name(text), Input: quoted}},
	}})
	w.put(0, record.ActorSystem, record.SandboxStarted{Attestation: att})
	w.put(0, record.ActorSystem, record.ConfirmationRequested{CallID: text, Name: tools.Name(text), Class: tools.Class(text), Summary: text, Diff: "+" + text, Hidden: true})
	w.put(time.Second, record.ActorUser, record.ConfirmationResolved{CallID: text, Decision: approval.Decision(text), Scope: approval.Scope(text), By: text, Client: text, Reason: text})
	w.put(0, record.ActorUser, record.ConfirmationAttempted{RequestID: text, Decision: approval.Decision(text), By: text, Outcome: approval.AttemptOutcome(text)})
	w.put(0, record.ActorAgent, record.ToolCalled{CallID: text, Name: tools.Name(text), Class: tools.Class(text), Rule: text, Summary: text})
	w.put(0, record.ActorTool, record.NetworkDenied{CallID: text, URL: text, Host: text, Reason: text})
	w.put(time.Second, record.ActorTool, record.ToolFailed{CallID: text, Name: tools.Name(text), Class: tools.ErrorClass(text), Reason: text, Message: text, FilesModified: []string{text}})
	w.put(0, record.ActorTool, record.Message{Role: loop.RoleTool, Blocks: []loop.Block{{ToolResult: &loop.ToolResult{
		ToolUseID: text, Content: []tools.Block{{Text: text + "!"}, {Image: []byte{1}, MediaType: text}}, IsError: true,
	}}}})
	w.put(0, record.ActorTool, record.BackgroundEnded{CallID: text, Handle: text, EndedBy: text, Error: text})
	w.put(0, record.ActorUser, record.UserCommandStarted{ExecID: text, Argv: []string{text}})
	w.put(0, record.ActorUser, record.UserCommandEnded{ExecID: text})
	w.put(0, record.ActorSystem, record.SandboxLost{Cause: text})
	w.put(0, record.ActorSystem, record.Warning{Message: text})
	w.put(0, record.ActorSystem, record.TurnCompleted{Reason: loop.StopReason(text)})
	patch := "+" + text + "\nrename from " + text + "\nrename to " + text + "\n--- a/was " + text + "\n+++ b/" + text +
		"\n@@ -1 +1 @@ " + text + "\n-before " + text + "\n+after " + text + "\n# " + text + "\n"
	w.put(0, record.ActorSystem, record.SessionEnded{
		Reason: loop.StopReason(text), ExitStatus: 1, Problem: &record.Problem{Cause: text, Hint: text}, CostUSD: text,
		Changed: []record.Changed{{Path: text, Change: text}}, HostExecuted: []record.HostExecuted{{Path: text, By: text}},
		Quarantined: []record.Quarantined{{Path: text, To: text, Why: text}}, Overlay: &record.OverlayResult{},
		Denials:     []record.Denial{{CallID: text, Name: tools.Name(text), Class: tools.ErrorClass(text), Reason: text}},
		Attestation: &sandbox.Attestation{}, PatchSHA256: w.patch(patch),
	})
	return w.close()
}

// pageShape returns a page without its texts: elements, their attributes'
// names, and the values of what could load, run or hide something.
func pageShape(t *testing.T, page []byte) []string {
	t.Helper()
	doc, err := html.Parse(bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for n := range doc.Descendants() {
		switch n.Type {
		case html.CommentNode:
			out = append(out, "comment")
		case html.ElementNode:
			var attrs []string
			for _, a := range n.Attr {
				switch a.Key {
				case "title", "datetime", "class", "style", "id", "data-call":
					attrs = append(attrs, a.Key)
				case "href":
					attrs = append(attrs, a.Key+"="+a.Val[:1])
				default:
					attrs = append(attrs, a.Key+"="+a.Val)
				}
			}
			slices.Sort(attrs)
			out = append(out, n.Data+" "+strings.Join(attrs, " "))
		}
	}
	return out
}

// findUnseen returns the invisible characters in a text.
func findUnseen(text []byte) string {
	_, hidden := tools.DisplayLines(string(text))
	if hidden {
		safe, _ := tools.DisplayLines(string(text))
		return safe
	}
	return ""
}

// TestHostileTextIsText compares the page of a session full of hostile text
// with one full of a harmless word. They differ only in texts, so that no
// element, attribute, style or comment comes from a text.
func TestHostileTextIsText(t *testing.T) {
	render := func(text string) []byte {
		t.Helper()
		var out bytes.Buffer
		if _, err := HTML(&out, newHostileSession(t, text)); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	word := render("word")
	want := pageShape(t, word)
	if len(want) < 150 {
		t.Fatalf("a page of %d elements: something of the session is missing", len(want))
	}
	for _, text := range hostile {
		t.Run(fmt.Sprintf("%q", text), func(t *testing.T) {
			page := render(text)
			if diff := cmp.Diff(want, pageShape(t, page)); diff != "" {
				t.Errorf("the page has something of the text (-word +hostile):\n%s", diff)
			}
			if hidden := findUnseen(page); hidden != "" {
				t.Error("characters that are not seen are in the page")
			}
			if strings.Contains(string(page), "ZgotmplZ") {
				t.Error("a text stands where a browser could obey it, and was replaced")
			}
			// Control: the same text without escapes makes another page.
			naive := bytes.Replace(word, []byte("word"), []byte(text), 1)
			naive = bytes.Replace(naive, []byte("<code>word"), []byte("<code>"+text), 1)
			if strings.ContainsAny(text, "<") && !strings.HasPrefix(text, "]]>") && cmp.Equal(want, pageShape(t, naive)) {
				t.Error("the test does not see this text where it is not escaped")
			}
		})
	}
}

// TestPageLoadsNothing looks at everything that a page could ask a browser for.
func TestPageLoadsNothing(t *testing.T) {
	var out bytes.Buffer
	if _, err := HTML(&out, newShopSession(t, t.TempDir())); err != nil {
		t.Fatal(err)
	}
	doc, err := html.Parse(bytes.NewReader(out.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	policy, style := "", ""
	ids := map[string]bool{}
	var links []string
	for n := range doc.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		if slices.Contains([]string{"script", "link", "img", "iframe", "object", "embed", "form", "base", "audio", "video", "source", "template"}, n.Data) {
			t.Errorf("there is a <%s>", n.Data)
		}
		if n.Data == "style" {
			style = n.FirstChild.Data
		}
		for _, a := range n.Attr {
			switch {
			case strings.HasPrefix(a.Key, "on"), a.Key == "style", a.Key == "src", a.Key == "srcset", a.Key == "ping", a.Key == "action", a.Key == "background":
				t.Errorf("<%s %s=%q>", n.Data, a.Key, a.Val)
			case a.Key == "href":
				links = append(links, a.Val)
			case a.Key == "id":
				if ids[a.Val] {
					t.Errorf("two elements with id %s", a.Val)
				}
				ids[a.Val] = true
			case a.Key == "content" && strings.Contains(a.Val, "default-src"):
				policy = a.Val
			}
		}
	}
	sum := sha256.Sum256([]byte(style))
	if want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; img-src data:; base-uri 'none'; form-action 'none'"; policy != want {
		t.Errorf("policy %q, want %q", policy, want)
	}
	for _, l := range links {
		if !strings.HasPrefix(l, "#") || !ids[l[1:]] {
			t.Errorf("a link to %q, which is not on the page", l)
		}
	}
	if len(links) < 10 {
		t.Errorf("%d links: the timeline is missing", len(links))
	}
	for _, word := range []string{"url(", "@import", "expression("} {
		if strings.Contains(pageStyle, word) {
			t.Errorf("the style has %s", word)
		}
	}
}

// TestShowIsSafeForATerminal writes no escapes except its colours.
func TestShowIsSafeForATerminal(t *testing.T) {
	for _, text := range hostile {
		s := newHostileSession(t, text)
		for _, o := range []ShowOptions{{}, {Full: true}, {JSON: true}, {Kinds: []record.Kind{record.KindMessage, record.KindWarning}}} {
			var out bytes.Buffer
			if _, err := Show(&out, s, o); err != nil {
				t.Fatal(err)
			}
			if hidden := findUnseen(out.Bytes()); hidden != "" || out.Len() == 0 {
				t.Errorf("%q, %+v: not safe: %s", text, o, hidden)
			}
		}
		var plain, coloured bytes.Buffer
		_, _ = Show(&plain, s, ShowOptions{})
		_, _ = Show(&coloured, s, ShowOptions{Colour: true})
		var own strings.Builder
		for rest := coloured.String(); rest != ""; {
			before, after, found := strings.Cut(rest, "\x1b[")
			own.WriteString(before)
			if rest = after; found {
				_, rest, _ = strings.Cut(after, "m")
			}
		}
		if diff := cmp.Diff(plain.String(), own.String()); diff != "" {
			t.Errorf("%q: with colours (-without +with):\n%s", text, diff)
		}
	}
}
