// Package output reads a command's output. The first bytes of each stream go to
// the host as they come, as fast as it consumes them. The rest is read at full
// speed, counted, hashed and dropped, except for a tail that is kept.
package output

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Sizes, in bytes.
const (
	// smallRead is the first buffer: most commands write less.
	smallRead = 8 << 10
	// largeRead is the buffer of a stream that filled the small one. pipeSize
	// is its pipe: the largest that an unprivileged process may ask for by
	// default (fs.pipe-max-size).
	largeRead = 256 << 10
	pipeSize  = 1 << 20
)

// Options bounds one stream and says where its live bytes go.
type Options struct {
	// Live is the number of bytes to send, Tail how many to keep of the rest.
	Live int64
	Tail int
	// Send sends n bytes of a block, from at on. It must not keep them.
	Send func(b *wire.Block, at, n int) error
	// Credit bounds how much may be sent. Closing it ends the live part.
	Credit *wire.Credit
	// Slots bounds how many streams are read at the same moment.
	Slots Slots
}

// Slots bounds the concurrent system calls that move data. On a busy machine
// each may lose the processor inside the kernel, and the runtime then wants
// another of the few threads (see package warm).
type Slots chan struct{}

// NewSlots returns Slots for n at a time.
func NewSlots(n int) Slots { return make(Slots, n) }

// Do runs f when there is a slot.
func (s Slots) Do(f func()) {
	s <- struct{}{}
	f()
	<-s
}

// WriteAll writes all of b. It waits for space without a slot.
func (s Slots) WriteAll(to syscall.RawConn, b []byte) (err error) {
	waited := to.Write(func(fd uintptr) bool {
		for len(b) > 0 {
			var n int
			s.Do(func() { n, err = unix.Write(int(fd), b) })
			switch err {
			case nil:
				b = b[n:]
			case unix.EINTR:
			case unix.EAGAIN:
				return false
			default:
				return true
			}
		}
		return true
	})
	if waited != nil {
		return waited
	}
	return err
}

// Pump reads one stream of a command. Run does, in its own goroutine; Finish
// and Abandon may be called meanwhile.
type Pump struct {
	o       Options
	src     *os.File
	sum     hash.Hash
	total   int64
	sent    int64
	live    bool
	tail    *Tail
	abandon chan struct{}
	once    sync.Once
}

// NewPump returns a Pump of src, the non-blocking read end of a pipe. Run
// closes src when it returns.
func NewPump(src *os.File, o Options) *Pump {
	return &Pump{
		o: o, src: src, sum: sha256.New(), live: o.Live > 0,
		tail: NewTail(o.Tail), abandon: make(chan struct{}),
	}
}

// Run reads to the end, or as Finish says. Then Result may be called.
func (p *Pump) Run() {
	defer func() { _ = p.src.Close() }()
	raw, err := p.src.SyscallConn()
	if err != nil {
		return // it is closed already
	}
	block := wire.NewBlock(smallRead)
	for {
		n, err := p.readOnce(raw, block, true)
		p.takeBlock(block, n)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			p.readRest(raw, block)
		}
		if err != nil {
			return
		}
		if n == smallRead && block.Size() == smallRead {
			block = wire.NewBlock(largeRead)
			_ = raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) }) // only for speed
		}
	}
}

// readOnce reads once. If wait is set, it waits for bytes, without a slot.
func (p *Pump) readOnce(raw syscall.RawConn, block *wire.Block, wait bool) (n int, err error) {
	places := block.Pieces(block.Size())
	waited := raw.Read(func(fd uintptr) bool {
		p.o.Slots.Do(func() {
			for n, err = unix.Readv(int(fd), places); err == unix.EINTR; n, err = unix.Readv(int(fd), places) {
			}
		})
		return err != unix.EAGAIN || !wait
	})
	switch {
	case waited != nil:
		return 0, waited
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// readRest reads what is in the pipe now, without waiting for more: at most
// twice a pipe's capacity, because a writer may still be there.
func (p *Pump) readRest(raw syscall.RawConn, block *wire.Block) {
	_ = p.src.SetReadDeadline(time.Time{})
	for budget := 2 * pipeSize; budget > 0; {
		n, err := p.readOnce(raw, block, false)
		if err != nil {
			return
		}
		p.takeBlock(block, n)
		budget -= n
	}
}

// takeBlock counts and hashes the first n bytes of a block and sends or keeps
// them.
func (p *Pump) takeBlock(b *wire.Block, n int) {
	p.total += int64(n)
	for _, piece := range b.Pieces(n) {
		p.sum.Write(piece)
	}
	at := 0
	for p.live && at < n {
		most, granted := int(min(int64(n-at), p.o.Live-p.sent)), 0
		if most > 0 {
			granted = p.o.Credit.Take(most, p.abandon)
		}
		if granted == 0 || p.o.Send(b, at, granted) != nil {
			p.live = false
			break
		}
		p.sent += int64(granted)
		at += granted
	}
	for _, piece := range b.Range(at, n-at) {
		p.tail.Write(piece)
	}
}

// Add adds text that the guest itself writes to the stream, instead of Run.
func (p *Pump) Add(text string) {
	b := wire.NewBlock(len(text))
	for _, piece := range b.Pieces(len(text)) {
		text = text[copy(piece, text):]
	}
	p.takeBlock(b, b.Size())
}

// Finish announces that no process of the command is left. If something still
// holds the pipe open, Run stops waiting for its end after wait.
func (p *Pump) Finish(wait time.Duration) {
	_ = p.src.SetReadDeadline(time.Now().Add(wait))
}

// Abandon ends the live part: later bytes are kept as the tail.
func (p *Pump) Abandon() { p.once.Do(func() { close(p.abandon) }) }

// Result describes the stream's content, once Run has returned.
func (p *Pump) Result() wire.Output {
	return wire.Output{
		Total: p.total, SHA256: hex.EncodeToString(p.sum.Sum(nil)),
		Live: p.sent, Tail: p.tail.Bytes(),
	}
}

// Tail keeps the last bytes written to it.
type Tail struct {
	size int
	ring []byte
	at   int // where the next byte goes, once the ring is full
}

// NewTail returns a Tail of size bytes.
func NewTail(size int) *Tail { return &Tail{size: size} }

func (t *Tail) Write(p []byte) {
	if len(p) > t.size {
		p = p[len(p)-t.size:]
	}
	if room := t.size - len(t.ring); room > 0 {
		n := min(room, len(p))
		t.ring = append(t.ring, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := copy(t.ring[t.at:], p)
		t.at = (t.at + n) % t.size
		p = p[n:]
	}
}

// Bytes returns the kept bytes in order.
func (t *Tail) Bytes() []byte {
	if len(t.ring) == 0 {
		return nil
	}
	out := make([]byte, 0, len(t.ring))
	return append(append(out, t.ring[t.at:]...), t.ring[:t.at]...)
}
