package output

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

func TestTail(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 50).Draw(t, "size")
		tail := NewTail(size)
		var all []byte
		for _, p := range rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 0, 120)).Draw(t, "pieces") {
			tail.Write(p)
			all = append(all, p...)
		}
		want := all[max(0, len(all)-size):]
		if !bytes.Equal(tail.Bytes(), want) {
			t.Fatalf("of %q it kept %q", all, tail.Bytes())
		}
	})
}

// pipe returns a pipe whose reading end does not block.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		t.Fatal(err)
	}
	r, w = os.NewFile(uintptr(fds[0]), "r"), os.NewFile(uintptr(fds[1]), "w")
	t.Cleanup(func() {
		_ = r.Close()
		_ = w.Close()
	})
	return r, w
}

// run pumps what write writes.
func run(t *testing.T, o Options, write func(w *os.File, p *Pump)) (wire.Output, []byte) {
	t.Helper()
	r, w := pipe(t)
	var sent []byte
	if o.Send == nil {
		o.Send = func(b *wire.Block, at, n int) error {
			for _, piece := range b.Range(at, n) {
				sent = append(sent, piece...)
			}
			return o.Credit.Grant(uint32(n))
		}
	}
	o.Slots = NewSlots(1)
	p := NewPump(r, o)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Run()
	}()
	write(w, p)
	<-done
	return p.Result(), sent
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func TestPump(t *testing.T) {
	whole := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(whole)
	for _, live := range []int64{0, 1, 1000, wire.Window + 1, int64(len(whole)) - 1, int64(len(whole)), 1 << 40} {
		got, sent := run(t, Options{Live: live, Tail: 100, Credit: wire.NewCredit()}, func(w *os.File, _ *Pump) {
			if _, err := w.Write(whole); err != nil {
				t.Error(err)
			}
			_ = w.Close()
		})
		n := min(live, int64(len(whole)))
		want := wire.Output{Total: int64(len(whole)), SHA256: hexSum(whole), Live: n}
		if n < int64(len(whole)) {
			want.Tail = whole[max(n, int64(len(whole))-100):]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("live %d (-want +got):\n%s", live, diff)
		}
		if !bytes.Equal(sent, whole[:n]) {
			t.Errorf("live %d: %d bytes were sent, or others", live, len(sent))
		}
	}
}

// TestPumpHeld: another process holds the pipe open. Run takes its content and
// does not wait for its end.
func TestPumpHeld(t *testing.T) {
	got, _ := run(t, Options{Live: 10, Tail: 10, Credit: wire.NewCredit()}, func(w *os.File, p *Pump) {
		if _, err := w.WriteString("written"); err != nil {
			t.Error(err)
		}
		p.Finish(time.Millisecond)
	})
	if got.Total != 7 || got.Live != 7 {
		t.Errorf("account is %+v", got)
	}
}

// TestPumpStalled: the consumer grants no credit. Run reads no more than one
// buffer until the live part is ended.
func TestPumpStalled(t *testing.T) {
	whole := bytes.Repeat([]byte{'x'}, 64<<10)
	credit := wire.NewCredit()
	credit.Take(wire.Window, nil)
	got, sent := run(t, Options{Live: 1 << 20, Tail: 5, Credit: credit}, func(w *os.File, p *Pump) {
		if _, err := w.Write(whole[:100]); err != nil {
			t.Error(err)
		}
		p.Abandon()
		p.Abandon()
		if _, err := w.Write(whole[100:]); err != nil {
			t.Error(err)
		}
		_ = w.Close()
	})
	if len(sent) != 0 || got.Live != 0 || got.Total != int64(len(whole)) || string(got.Tail) != "xxxxx" {
		t.Errorf("account is %+v", got)
	}
}

// TestPumpBroken: the connection fails. Run still reads to the end.
func TestPumpBroken(t *testing.T) {
	got, _ := run(t, Options{
		Live: 100, Tail: 3, Credit: wire.NewCredit(),
		Send: func(*wire.Block, int, int) error { return errors.New("broken") },
	}, func(w *os.File, _ *Pump) {
		if _, err := w.WriteString("abcdef"); err != nil {
			t.Error(err)
		}
		_ = w.Close()
	})
	if got.Live != 0 || got.Total != 6 || string(got.Tail) != "def" {
		t.Errorf("account is %+v", got)
	}
}
