package outputlog

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func newStore(t *testing.T, perStream, total int64) *Store {
	t.Helper()
	s, err := NewStore(filepath.Join(t.TempDir(), "output"), perStream, total)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func create(t *testing.T, s *Store, name string) *Log {
	t.Helper()
	l, err := s.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func write(t *testing.T, l *Log, stream int, text string) {
	t.Helper()
	if n, err := l.Writer(stream).Write([]byte(text)); n != len(text) || err != nil {
		t.Fatalf("write %d bytes: %d, %v", len(text), n, err)
	}
}

// read returns a stream from an offset.
func read(t *testing.T, r *Reader, stream int, offset int64) string {
	t.Helper()
	buffer := make([]byte, 100)
	n, err := r.ReadAt(stream, buffer, offset)
	if err != nil {
		t.Fatal(err)
	}
	return string(buffer[:n])
}

// The first bytes of each stream are kept, within the room of all, and the rest
// is counted.
func TestBounds(t *testing.T) {
	s := newStore(t, 10, 15)
	a, b := create(t, s, "a"), create(t, s, "b")
	write(t, a, 0, "12345678")
	write(t, a, 0, "9abc")
	write(t, a, 1, "xyz")
	write(t, b, 0, "pqrs")
	for _, c := range []struct {
		name        string
		log         *Log
		kept, total [Streams]int64
		text        [Streams]string
	}{
		{"up to the bound of a stream", a, [Streams]int64{10, 3}, [Streams]int64{12, 3}, [Streams]string{"123456789a", "xyz"}},
		{"up to the bound of all", b, [Streams]int64{2, 0}, [Streams]int64{4, 0}, [Streams]string{"pq", ""}},
	} {
		state, _ := c.log.State()
		if state.Kept != c.kept || state.Total != c.total || state.Ended {
			t.Errorf("%s: %+v, want %d kept of %d", c.name, state, c.kept, c.total)
		}
		r, err := c.log.Open()
		if err != nil {
			t.Fatal(err)
		}
		for stream, want := range c.text {
			if got := read(t, r, stream, 0); got != want {
				t.Errorf("%s: stream %d has %q, want %q", c.name, stream, got, want)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := s.Room(); n != 0 {
		t.Errorf("room for %d bytes, want none", n)
	}
}

// Nothing is kept after missing bytes, even if there is room again.
func TestNoGap(t *testing.T) {
	s := newStore(t, 10, 10)
	a, b := create(t, s, "a"), create(t, s, "b")
	write(t, a, 0, "0123456789")
	write(t, b, 0, "lost")
	if err := a.End(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the room is returned once
		if err := a.Remove(); err != nil {
			t.Fatal(err)
		}
		if n := s.Room(); n != 10 {
			t.Fatalf("room for %d bytes, want 10", n)
		}
	}
	write(t, b, 0, "late")
	if state, _ := b.State(); state.Kept[0] != 0 || state.Total[0] != 8 || s.Room() != 10 {
		t.Errorf("%+v with room for %d bytes: something is kept behind a gap", state, s.Room())
	}
	write(t, b, 1, "other")
	if state, _ := b.State(); state.Kept[1] != 5 {
		t.Errorf("%+v: a stream without a gap keeps nothing", state)
	}
}

// A reader can read a removed log, and from an offset.
func TestReaderOutlivesItsLog(t *testing.T) {
	s := newStore(t, 100, 100)
	l := create(t, s, "a")
	r, err := l.Open()
	if err != nil {
		t.Fatal(err)
	}
	write(t, l, 1, "hello")
	if err := l.End(); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(); err != nil {
		t.Fatal(err)
	}
	if got := read(t, r, 1, 2); got != "llo" {
		t.Errorf("%q, want llo", got)
	}
	if got := read(t, r, 1, 50); got != "" {
		t.Errorf("behind the end: %q", got)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Open(); err == nil {
		t.Error("a removed log can be opened")
	}
	if err := l.Remove(); err != nil {
		t.Errorf("remove what is gone: %v", err)
	}
}

// Output and the end wake waiting readers.
func TestChanges(t *testing.T) {
	l := create(t, newStore(t, 4, 4), "a")
	for name, change := range map[string]func(){
		"output":                  func() { write(t, l, 0, "1234") },
		"output that is not kept": func() { write(t, l, 0, "5") },
	} {
		_, changed := l.State()
		change()
		select {
		case <-changed:
		default:
			t.Errorf("%s wakes no one", name)
		}
	}
	_, changed := l.State()
	select {
	case <-changed:
		t.Error("nothing changed, and it wakes")
	default:
	}
	if err := l.End(); err != nil {
		t.Fatal(err)
	}
	<-changed
	write(t, l, 0, "late") // a process that is left may still write
	if state, _ := l.State(); !state.Ended || state.Kept[0] != 4 || state.Total[0] != 9 {
		t.Errorf("%+v", state)
	}
}

// Bytes that could not be written are counted, and the reason is returned at
// the end.
func TestFullDisk(t *testing.T) {
	s := newStore(t, 100, 100)
	l := create(t, s, "a")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	if err := l.files[0].Close(); err != nil {
		t.Fatal(err)
	}
	l.files[0] = full
	write(t, l, 0, "12345")
	write(t, l, 0, "6")
	if state, _ := l.State(); state.Kept[0] != 0 || state.Total[0] != 6 || s.Room() != 100 {
		t.Errorf("%+v with room for %d bytes", state, s.Room())
	}
	if err := l.End(); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Errorf("ended with %v", err)
	}
}

// A store and a log are refused if their names are taken, and leave nothing.
func TestNamesAreTaken(t *testing.T) {
	s := newStore(t, 10, 10)
	if _, err := NewStore(s.dir, 10, 10); err == nil {
		t.Error("a store in a directory that is there")
	}
	if err := os.WriteFile(filepath.Join(s.dir, "a.2"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create("a"); err == nil {
		t.Error("a log in a file that is there")
	}
	if _, err := os.Stat(filepath.Join(s.dir, "a.1")); !os.IsNotExist(err) {
		t.Errorf("the first stream of a log that could not be made is left: %v", err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "a.2")); err != nil {
		t.Errorf("the file of another is gone: %v", err)
	}
}

// Concurrent writers never keep more than the bounds, and lose no count.
func TestConcurrentWriters(t *testing.T) {
	const writers, chunk, each = 4, 7, 50
	s := newStore(t, 500, 800)
	logs := []*Log{create(t, s, "a"), create(t, s, "b")}
	var group sync.WaitGroup
	for _, l := range logs {
		for stream := range Streams {
			for range writers {
				group.Go(func() {
					for range each {
						_, _ = l.Writer(stream).Write(bytes.Repeat([]byte("x"), chunk))
						_, _ = l.State()
					}
				})
			}
		}
	}
	group.Wait()
	var kept int64
	for _, l := range logs {
		state, _ := l.State()
		for stream := range Streams {
			if state.Total[stream] != writers*chunk*each || state.Kept[stream] > 500 {
				t.Errorf("%+v", state)
			}
			kept += state.Kept[stream]
		}
		if err := l.End(); err != nil {
			t.Error(err)
		}
	}
	if kept != 800 || s.Room() != 0 {
		t.Errorf("%d bytes are kept with room for %d, want 800 and none", kept, s.Room())
	}
}
