package shell

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestLiveOutputIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		l := newLiveWriter("stdout", func(stream, text string) { got = append(got, stream+" "+text) })
		write := func(s string) {
			if n, err := l.Write([]byte(s)); n != len(s) || err != nil {
				t.Errorf("Write gives %d, %v", n, err)
			}
		}
		write("one\n") // at once
		write("two\n")
		write("three\n") // together, when the interval is over
		time.Sleep(time.Hour)
		write("ä"[:1]) // half a rune waits for its other half
		time.Sleep(time.Second)
		write("ä"[1:])
		time.Sleep(time.Second)
		write("end")
		write(" of it")
		l.close()
		write("late")
		time.Sleep(time.Second)
		want := []string{"stdout one\n", "stdout two\nthree\n", "stdout ä", "stdout end", "stdout  of it"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("deltas (-want +got):\n%s", diff)
		}
	})
}

func TestLiveOutputOfAFloodIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		l := newLiveWriter("stderr", func(_, text string) { got = append(got, text) })
		chunk := []byte(strings.Repeat("y\nä", 1000))
		for range 1000 { // 4 MB over a second
			if _, err := l.Write(chunk); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		if _, err := l.Write([]byte(strings.Repeat("z", 10*liveBytes) + "last")); err != nil {
			t.Fatal(err)
		}
		l.close()
		if len(got) > 12 {
			t.Errorf("%d deltas in a second", len(got))
		}
		for _, text := range got {
			if len(text) > liveBytes+len("…") || !utf8.ValidString(text) {
				t.Errorf("delta of %d bytes, valid %t", len(text), utf8.ValidString(text))
			}
		}
		if last := got[len(got)-1]; !strings.HasPrefix(last, "…") || !strings.HasSuffix(last, "last") {
			t.Errorf("the last delta does not say that something was dropped, or lacks the end: %.10q…", last)
		}
	})
}

func TestUnfinished(t *testing.T) {
	for s, want := range map[string]int{
		"": 0, "a": 0, "ä": 0, "ä"[:1]: 1, "€"[:1]: 1, "€"[:2]: 2, "€": 0, "😀"[:1]: 1, "😀"[:2]: 2, "😀"[:3]: 3, "😀": 0,
		"a\xff": 0, "\x80": 0, "\x80\x80\x80\x80": 0, "a" + "😀"[:3]: 3,
	} {
		if got := partialRuneLen([]byte(s)); got != want {
			t.Errorf("%q has %d unfinished bytes, want %d", s, got, want)
		}
	}
}
