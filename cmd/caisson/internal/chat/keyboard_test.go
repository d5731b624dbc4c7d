package chat

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Input typed before a question is never part of an answer, however it is split. Input
// typed afterwards is. Without dropping, some early bytes would be: the control.
func TestEarlyBytesAnswerNothing(t *testing.T) {
	pieces := rapid.SampledFrom([]string{"y", "\r", "\n", "y\r", "yes\r", "a\r", "A", "\x7f", "\x1b", "\x1b[200~y\r\x1b[201~", "\x1b[13u", "\t", "漢", "\x04"})
	controlled := false
	rapid.Check(t, func(rt *rapid.T) {
		early := rapid.SliceOfN(pieces, 0, 12).Draw(rt, "early")
		shownAt := rapid.IntRange(0, len(early)).Draw(rt, "shown")
		drop := rapid.Bool().Draw(rt, "drop")
		k := NewKeyboard(nil, true, func(string, bool) {})
		k.keys = make(chan key, 1000)
		var d keyDecoder
		typeIn := func(text string) {
			for _, pressed := range append(d.addBytes([]byte(text)), d.endWait()...) {
				k.routeKey(pressed)
			}
		}
		for _, text := range early[:shownAt] {
			typeIn(text)
		}
		k.Ask(true)
		for _, text := range early[shownAt:] { // while the question is drawn
			typeIn(text)
		}
		if drop {
			none := func(context.Context, time.Duration) (bool, error) { return false, nil }
			if _, err := k.Pressed(t.Context(), time.Second, none); err != nil {
				rt.Fatal(err)
			}
		}
		typeIn("no\r")
		buf := make([]byte, 4096)
		n, err := k.Read(buf)
		if err != nil && !errors.Is(err, io.EOF) {
			rt.Fatal(err)
		}
		switch got := string(buf[:n]); {
		case got == "no\n":
		case drop:
			rt.Errorf("the answer is %q", got)
		default:
			controlled = true
		}
	})
	if !controlled {
		t.Error("positive control: without dropping, early bytes answer nothing")
	}
}

// Keys that come together with one, and keys without characters, follow it: a question
// sees that they are a text.
func TestKeysThatFollowAreTyped(t *testing.T) {
	for text, want := range map[string]string{"A": "A", "Also": "Also", "y\r": "y\n", "y\x1b[A": "y" + otherKey, "y\x1b[200~y\x1b[201~": "y" + otherKey} {
		k := NewKeyboard(nil, true, func(string, bool) {})
		k.Ask(true)
		k.SetSingle(true)
		var d keyDecoder
		for _, pressed := range d.addBytes([]byte(text)) {
			k.routeKey(pressed)
		}
		got := ""
		for {
			typed, err := k.Typed(t.Context(), time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			if typed == "" {
				break
			}
			got += typed
		}
		if got != want {
			t.Errorf("of %q, %q is typed", text, got)
		}
	}
}

// A closed keyboard doesn't read its input: what is typed afterwards stays there.
func TestAClosedKeyboardReadsNothing(t *testing.T) {
	for _, closed := range []bool{true, false} {
		in, typing, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		k := NewKeyboard(in, false, nil)
		done := make(chan struct{})
		go func() { defer close(done); k.readKeys() }()
		if closed {
			k.Close()
			<-done
		}
		if _, err := typing.WriteString("late\n"); err != nil {
			t.Fatal(err)
		}
		typing.Close()
		if !closed { // the positive control
			if got := <-k.keys; got.text != "late" {
				t.Errorf("an open keyboard reads %q", got.text)
			}
			<-done
		}
		left, err := io.ReadAll(in)
		if err != nil || (string(left) == "late\n") != closed {
			t.Errorf("closed %t: %q is left, %v", closed, left, err)
		}
		in.Close()
	}
}

// No answer contains bytes from before the question could be answered, wherever they
// are split. Bytes that begin a paste keep the rest from being keys.
func FuzzEarlyBytes(f *testing.F) {
	for _, early := range []string{"y\r", "a\ry", "\x1b[200~y\r\x1b[201~y", "\x1b[13u", "\x1b", "\xe6\xbc", "\x1b[200~y", "\x1b[<0;1;1M\x1b]11;rgb:0/0/0\x1b\\", "\x1b[121;1:1u\x1b[13;1:1u"} {
		f.Add([]byte(early), uint(1), uint(2))
	}
	f.Fuzz(func(t *testing.T, early []byte, shown, cut uint) {
		shown = min(shown, uint(len(early)))
		k := NewKeyboard(nil, true, func(string, bool) {})
		k.keys = make(chan key, 4*len(early)+16)
		var d keyDecoder
		typeIn := func(p []byte, wait bool) {
			for _, pressed := range d.addBytes(p) {
				k.routeKey(pressed)
			}
			for wait && d.waitsForMore() {
				for _, pressed := range d.endWait() {
					k.routeKey(pressed)
				}
			}
		}
		typeIn(early[:shown], cut%2 == 0)
		k.Ask(true)
		late := early[shown:] // while the question is drawn
		cut = min(cut, uint(len(late)))
		typeIn(late[:cut], false)
		typeIn(late[cut:], true)
		none := func(context.Context, time.Duration) (bool, error) { return false, nil }
		if _, err := k.Pressed(t.Context(), time.Second, none); err != nil {
			t.Fatal(err)
		}
		typeIn([]byte("no\r"), true)
		if d.pasting {
			return
		}
		select {
		case answer := <-k.answers:
			if answer != "no\n" {
				t.Errorf("the answer is %q", answer)
			}
		default:
			t.Error("there is no answer")
		}
	})
}
