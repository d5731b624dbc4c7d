package browser

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// cart is a task with a call to allow, one to deny, one that fails and an answer.
const cart = `
  - text: I subtract the discount.
    calls: [{tool: patch_file, input: {path: cart.go, old: return sum, new: return sum - discount}}]
  - calls: [{tool: shell, input: {command: "rm cart.go"}}]
  - calls: [{tool: read_file, input: {path: missing.go}}]
  - text: The total is **right** now.
`

// user goes through the journeys: with the mouse, or with the keyboard alone.
type user struct {
	*tab
	mouse bool
}

// use presses a button or follows a link, with one click or with Tab and Enter.
func (u user) use(selector string) {
	u.t.Helper()
	if u.mouse {
		u.click(selector)
		return
	}
	u.reach(selector)
	u.enter()
}

// enter presses Enter. Without script it leads to another page.
func (u user) enter() {
	u.t.Helper()
	if u.script {
		u.press(kb.Enter)
		return
	}
	get[string](u.tab, `document.documentElement.dataset.old = "yes"`)
	u.press(kb.Enter)
	u.wait(`!document.documentElement.dataset.old && document.readyState === "complete"`)
}

// into moves into a field.
func (u user) into(selector string) {
	u.t.Helper()
	if u.mouse {
		u.click(selector)
		return
	}
	u.reach(selector)
}

// settles waits until something is there. Without script a person reloads the page for it.
func (u user) settles(expression string) {
	u.t.Helper()
	if u.script {
		u.wait(expression)
		return
	}
	eventually(u.t, expression, func() bool {
		u.run(chromedp.Reload())
		return get[bool](u.tab, "Boolean("+expression+")")
	})
}

// costs compares the keys and clicks since the last call with a journey's.
func (u user) costs(journey string, most int) {
	u.t.Helper()
	u.t.Logf("%s: %d keys, %d clicks", journey, u.keys, u.clicks)
	if u.mouse && u.script && u.keys+u.clicks > most {
		u.t.Errorf("%s takes %d keys and clicks, want %d at most", journey, u.keys+u.clicks, most)
	}
	u.keys, u.clicks = 0, 0
}

// cardReady is true once the buttons of the card work, and the page's script has begun if
// it has one.
func (b *tab) cardReady() string {
	ready := `document.querySelector("#questions button[value=allow]:not([aria-disabled=true])")`
	if b.script {
		ready = `document.querySelector("#keys:not([hidden])") && ` + ready
	}
	return ready
}

// ways are how people use the page.
var ways = []struct {
	name          string
	mouse, script bool
}{{"mouse", true, true}, {"keyboard", false, true}, {"no script", false, false}}

// TestJourneys types a task, allows a call, denies another, reads the changes, applies
// them and looks for the failure: with the mouse, with the keyboard alone, and without
// script.
func TestJourneys(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, map[string]string{"cart": cart})
			u := user{s.tab(t, way.script), way.mouse}

			u.signInAt(s.opened)
			u.into("textarea[name=message]")
			u.enters("make the discount count")
			u.use("#new button.main, form[action='/'] button")
			u.says("h1", "make the discount count")
			u.costs("1, type a task", 2)

			u.settles(u.cardReady())
			if way.script && !way.mouse {
				u.press("a")
				u.wait(`document.activeElement.closest("#questions")`)
			}
			u.use("#questions button[value=allow]")
			u.settles(`document.querySelector("#questions")?.textContent.includes("rm cart.go")`)
			u.costs("3, allow a call", 1)

			u.settles(u.cardReady())
			u.into("#questions input[name=reason]")
			u.enters("it is still needed")
			u.enter() // the form's first button is Deny
			u.settles(`document.querySelector("#story")?.textContent.includes("The total is right now.")`)
			u.settles(`document.querySelector("#story").textContent.includes("it is still needed")`)
			u.costs("4, deny it and say why", 2)

			u.use("a[href$='/changes']")
			u.says("main", "sum - discount")
			if text := s.file("cart.go"); strings.Contains(text, "discount\n}") {
				t.Error("the changes are in the workspace before they are applied")
			}
			u.use("button[name=action][value=apply]")
			u.says("main", "The changes are applied")
			u.costs("5, read the changes and apply them", 3)
			if text := s.file("cart.go"); !strings.Contains(text, "return sum - discount") {
				t.Errorf("applied, the file is\n%s", text)
			}

			out, err := s.command("open", "last", "--print", "--url", s.address, "--token-file", filepath.Join(s.home, "alice.token")).Output()
			found := openLine.FindSubmatch(out)
			if err != nil || found == nil {
				t.Fatalf("caisson open last: %v\n%s", err, out)
			}
			u.signInAt(string(found[1]))
			u.says("h1", "make the discount count")
			if way.script {
				u.shows("#keys:not([hidden])")
				u.press("n")
			} else {
				u.use("#nextfailure")
			}
			u.wait(`/^#s\d+/.test(location.hash) && document.querySelector(location.hash)`)
			u.costs("6, why did it fail", 2)
			u.check()
		})
	}
}

func (s *site) file(name string) string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.workspace, name))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// chat starts a conversation in a terminal, and returns how to type a line there and how
// to sign in to its page.
func (s *site) chat(policy string) (say func(string), open func() *tab) {
	s.t.Helper()
	line := "stty cols 300; exec " + s.bin + " chat --plain --backend gvisor --mode overlay --model chat --policy " + policy
	cmd := exec.CommandContext(context.WithoutCancel(s.t.Context()), "script", "-qfec", line, os.DevNull)
	cmd.Dir, cmd.Env = s.workspace, s.env
	in, err := cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = s.log, s.log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	say = func(text string) {
		s.t.Helper()
		if _, err := io.WriteString(in, text+"\n"); err != nil {
			s.t.Fatal(err)
		}
	}
	s.t.Cleanup(func() {
		if s.t.Failed() { // it may have ended, or wait for something else
			_ = cmd.Process.Kill()
		} else {
			say("/quit")
		}
		if err := cmd.Wait(); err != nil {
			s.t.Errorf("%v\n%s", err, s.log)
		}
	})
	opened := 0
	return say, func() *tab {
		s.t.Helper()
		say("/open")
		opened++
		eventually(s.t, "it says where the page is", func() bool {
			found := openLine.FindAllStringSubmatch(s.log.String(), -1)
			if len(found) < opened {
				return false
			}
			s.opened = found[opened-1][1]
			return true
		})
		s.base, _, _ = strings.Cut(s.opened, "/login")
		b := s.tab(s.t, true)
		b.signInAt(s.opened)
		return b
	}
}

// TestTerminalInABrowser watches a conversation of a terminal after /open, journey 2.
func TestTerminalInABrowser(t *testing.T) {
	t.Parallel()
	s := newHome(t, map[string]string{"chat": "  - text: First.\n  - text: Second.\n"})
	say, open := s.chat("sandboxed")
	say("hello")
	eventually(t, "it answers", func() bool { return strings.Contains(s.log.String(), "First.") })
	b := open()
	b.says("#story", "First.")
	say("and more")
	b.says("#story", "Second.") // without a reload
	b.check()
}

// TestTerminalAndBrowsers answers a question in a terminal and in two browsers at once.
// One answer counts, and the others see whose.
func TestTerminalAndBrowsers(t *testing.T) {
	t.Parallel()
	s := newHome(t, map[string]string{"chat": "  - calls: [{tool: shell, input: {command: echo two}}]\n  - text: Done.\n"})
	say, open := s.chat("default")
	tabs := []*tab{open(), open()}
	say("hello")
	for _, b := range tabs {
		b.wait(b.cardReady())
	}
	eventually(t, "the terminal asks", func() bool { return strings.Contains(s.log.String(), "? help >") })
	var group sync.WaitGroup
	group.Go(func() { say("n") })
	for _, b := range tabs {
		group.Go(func() {
			_, _ = try[chromedp.Void](b, `document.querySelector("#questions button[value=deny]").click()`)
		})
	}
	group.Wait()
	for _, b := range tabs {
		b.says("#story", "Done.")
	}
	_, id, _ := strings.Cut(get[string](tabs[0], "location.pathname"), "/s/")
	winner := strings.TrimPrefix(s.winner(id), "user")
	for _, b := range tabs {
		b.says("#story .asked", winner)
		b.check()
	}
	if winner != "terminal" {
		// Instead of the question, or, if somebody typed at the same moment, at the call.
		eventually(t, "the terminal says whose answer counts", func() bool {
			return strings.Contains(s.log.String(), "answered elsewhere: deny (once) by "+winner) || strings.Contains(s.log.String(), "refused by "+winner)
		})
	}
}

// TestOneAnswerCounts answers a question in two browsers and over the API at once. One
// answer counts, and the others see whose.
func TestOneAnswerCounts(t *testing.T) {
	t.Parallel()
	s := newSite(t, map[string]string{"cart": cart})
	id, turn := s.session("cart", "fix it")
	q := s.question(id)
	tabs := map[string]*tab{"alice": s.tab(t, true).signIn("alice"), "bob": s.tab(t, true).signIn("bob")}
	for _, b := range tabs {
		b.open("/s/" + id)
		b.wait(b.cardReady())
	}
	var group sync.WaitGroup
	var status int
	var text []byte
	group.Go(func() {
		status, text = s.send("carol", "POST", "/sessions/"+id+"/turns/"+turn+"/confirmations/"+q, answerOf("deny", "no"))
	})
	for _, b := range tabs {
		group.Go(func() {
			_, _ = try[chromedp.Void](b, `document.querySelector("#questions button[value=deny]").click()`)
		})
	}
	group.Wait()
	for _, b := range tabs {
		b.wait("!document.querySelector(" + quote("#q-"+q+":not(.over)") + ")")
	}
	winner := s.winner(id)
	for name, b := range tabs {
		if winner != "userhttp:"+name+"/browser" {
			b.says("body", strings.TrimPrefix(winner, "user")) // on the page, or in what its answer was refused with
		}
	}
	if winner != "userhttp:carol" && (status != http.StatusConflict || !strings.Contains(string(text), strings.TrimPrefix(winner, "user"))) {
		t.Errorf("the API doesn't say whose answer counts: %d %s", status, text)
	}
}

// TestLateAnswer keeps back what the server answers to a form until the stream has
// brought the next question: the older page doesn't take the question away.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	s := newSite(t, map[string]string{"two": `
  - calls: [{tool: shell, input: {command: "sleep 2; echo one"}}]
  - calls: [{tool: shell, input: {command: "echo two"}}]
  - text: Both ran.
`})
	id, _ := s.session("two", "run both")
	b := s.tab(t, true).signIn("alice")
	b.open("/s/" + id)
	b.wait(b.cardReady())
	get[bool](b, `window.send = fetch, window.fetch = async (...request) => {
		const answer = await send(...request), text = await answer.text();
		window.late = !text.includes("class=\"card");
		await new Promise(deliver => window.deliver = deliver);
		return {ok: answer.ok, url: answer.url, text: () => text};
	}, true`)
	b.click("#questions button[value=allow]")
	b.says("#questions", "echo two")
	b.wait("window.deliver")
	if !get[bool](b, "late") {
		t.Fatal("the form's answer has the second question already")
	}
	get[bool](b, "window.fetch = send, deliver(), true")
	b.wait(b.cardReady())
	b.says("#questions", "echo two")
	b.click("#questions button[value=allow]")
	b.says("#story", "Both ran.")
	b.check()
}

// winner returns whose answer to the only question of a session counts.
func (s *site) winner(id string) string {
	s.t.Helper()
	all, err := os.ReadFile(filepath.Join(s.home, ".local", "state", "caisson", "sessions", id, "trace.jsonl"))
	if err != nil {
		s.t.Fatal(err)
	}
	var winners []string
	for line := range strings.Lines(string(all)) {
		var r struct {
			Kind    string
			Payload struct{ By, Client string }
		}
		if json.Unmarshal([]byte(line), &r) == nil && r.Kind == "tool.confirmation_resolved" {
			winners = append(winners, r.Payload.By+r.Payload.Client)
		}
	}
	if len(winners) != 1 {
		s.t.Fatalf("the answers of %q count: %s", winners, all)
	}
	s.t.Logf("the answer of %s counts", winners[0])
	return winners[0]
}
