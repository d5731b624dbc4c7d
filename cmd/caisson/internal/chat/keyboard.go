package chat

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools"
)

// escapeTime is how long the rest of an escape sequence may take: after it, the escape
// was a key.
const escapeTime = 50 * time.Millisecond

// maxAnswer bounds a typed answer to a question, with its reason.
const maxAnswer = 1000

// maxRest bounds the keys that follow one and wait to be read.
const maxRest = 64

// Keyboard reads a terminal, and hands what is typed to the composer or, while a question
// stands there, to the question. It is safe for concurrent use.
type Keyboard struct {
	in io.Reader
	// raw is set for keys; otherwise the terminal edits lines itself.
	raw bool
	// echo shows what was typed as an answer so far.
	echo func(typed string, done bool)
	keys chan key
	file *pausableFile // nil where reading can't be interrupted

	mu     sync.Mutex
	asking bool
	// single is set if a key is an answer.
	single  bool
	typed   string
	answers chan string
	ended   bool
}

// NewKeyboard returns the keyboard of a terminal, or of another input if it is one of
// lines. echo shows what was typed as an answer so far; only raw keyboards call it.
func NewKeyboard(in io.Reader, raw bool, echo func(typed string, done bool)) *Keyboard {
	k := &Keyboard{in: in, raw: raw, echo: echo, keys: make(chan key, 64), answers: make(chan string, maxRest)}
	if f, ok := in.(*os.File); ok {
		k.file = newPausableFile(f)
	}
	return k
}

// Start begins to read.
func (k *Keyboard) Start() { go k.readKeys() }

// Close ends reading, where that is possible: the input, which stays open, is not used
// afterwards. It waits for no one to take the keys that were read.
func (k *Keyboard) Close() {
	if k.file != nil {
		k.file.close()
	}
}

// readKeys reads until the end of input, or Close.
func (k *Keyboard) readKeys() {
	var decoder keyDecoder
	buf := make([]byte, 64<<10)
	for {
		wait := time.Duration(-1)
		if decoder.waitsForMore() {
			wait = escapeTime
		}
		n, err := k.readSome(buf, wait)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		var keys []key
		switch {
		case !k.raw:
			keys = lineKeys(string(buf[:n]))
		case n == 0 && err == nil: // nothing more came
			keys = decoder.endWait()
		default:
			keys = decoder.addBytes(buf[:n])
		}
		for _, pressed := range keys {
			k.routeKey(pressed)
		}
		if err != nil {
			k.endInput()
			return
		}
	}
}

// readSome reads what there is, or returns 0 after a wait, if that is not negative.
func (k *Keyboard) readSome(buf []byte, wait time.Duration) (int, error) {
	if k.file == nil {
		return k.in.Read(buf)
	}
	return k.file.read(buf, wait)
}

// lineKeys returns the lines of a read, which on a terminal is one line.
func lineKeys(text string) []key {
	var keys []key
	for l := range strings.Lines(text) {
		keys = append(keys, key{kind: keyLine, text: strings.TrimRight(l, "\r\n")})
	}
	return keys
}

// endInput reports the end of input to the one who waits.
func (k *Keyboard) endInput() {
	k.mu.Lock()
	k.ended = true
	close(k.answers)
	k.mu.Unlock()
	k.keys <- key{kind: keyEOF}
}

// routeKey hands a key to the question or to the composer.
func (k *Keyboard) routeKey(pressed key) {
	stop := pressed.kind == keyText && pressed.ctrl && pressed.text == "c"
	k.mu.Lock()
	asking := k.asking
	k.mu.Unlock()
	if !asking || stop || pressed.kind == keyFocus || pressed.kind == keyBlur {
		k.keys <- pressed
		return
	}
	typed, done, changed := k.answerKey(pressed)
	if changed && k.raw {
		k.echo(strings.TrimSuffix(typed, "\n"), done)
	}
	if done {
		k.deliverAnswer(typed)
	}
}

// SetSingle makes keys answers that the question shows itself, or lines again.
func (k *Keyboard) SetSingle(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.single = on
	k.dropTyped()
}

// Typed returns what is typed next as an answer, "" if nothing is for a while.
func (k *Keyboard) Typed(ctx context.Context, wait time.Duration) (string, error) {
	select {
	case answer, ok := <-k.answers:
		if !ok {
			return "", nil // the next read reports the end
		}
		return answer, nil
	case <-time.After(wait):
		return "", nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// otherKey is the answer of a key without a character, and of a paste.
const otherKey = "\x1b"

// answerKey adds a key to the answer, and reports whether that is complete. A paste is
// no keys.
func (k *Keyboard) answerKey(pressed key) (typed string, done, changed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.single && pressed.kind == keyEnter:
		return "\n", true, false
	case k.single && pressed.kind == keyText && !pressed.ctrl && !pressed.alt:
		return pressed.text, true, false
	case k.single:
		return otherKey, true, false
	case pressed.kind == keyLine:
		return pressed.text + "\n", true, true
	case pressed.kind == keyEnter:
		typed, k.typed = k.typed, ""
		return typed + "\n", true, true
	case pressed.kind == keyBackspace && k.typed != "":
		_, size := lastCharacter(k.typed)
		k.typed = k.typed[:len(k.typed)-size]
	case pressed.kind == keyText && !pressed.ctrl && !pressed.alt && len(k.typed) < maxAnswer:
		safe, _ := tools.Display(pressed.text)
		k.typed += safe
	default:
		return "", false, false
	}
	return k.typed, false, true
}

// lastCharacter returns the last character of a text, which is not empty.
func lastCharacter(text string) (string, int) {
	for {
		cluster, _ := ansi.FirstGraphemeCluster(text, ansi.GraphemeWidth)
		if len(cluster) == len(text) {
			return cluster, len(cluster)
		}
		text = text[len(cluster):]
	}
}

// deliverAnswer hands an answer to the question, unless that is gone or has one.
func (k *Keyboard) deliverAnswer(answer string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.asking && !k.ended && (k.single || len(k.answers) == 0) {
		select {
		case k.answers <- answer:
		default:
		}
	}
}

// Ask begins or ends a question. What was typed before is dropped.
func (k *Keyboard) Ask(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asking = on
	k.dropTyped()
}

// dropTyped forgets what was typed as an answer. The caller holds mu.
func (k *Keyboard) dropTyped() {
	k.typed = ""
	if k.ended {
		return
	}
	for len(k.answers) > 0 {
		select {
		case <-k.answers:
		default: // it was read
		}
	}
}

// Read returns the next answer to a question, a line or a key. It implements io.Reader.
func (k *Keyboard) Read(p []byte) (int, error) {
	answer, ok := <-k.answers
	if !ok {
		return 0, io.EOF
	}
	return copy(p, answer), nil
}

// Pressed calls pressed, which looks for a key for a while and drops it, while the keyboard
// is not read; then it drops what was typed before.
func (k *Keyboard) Pressed(ctx context.Context, wait time.Duration, pressed func(context.Context, time.Duration) (bool, error)) (bool, error) {
	defer k.Pause()()
	found, err := pressed(ctx, wait)
	k.mu.Lock()
	defer k.mu.Unlock()
	early := k.typed != ""
	k.dropTyped()
	return found || early, err
}

// Pause keeps the keyboard from being read until resume is called, where that is possible.
func (k *Keyboard) Pause() (resume func()) {
	if k.file == nil {
		return func() {}
	}
	return k.file.pause()
}

// SetRaw makes a terminal deliver keys as they are pressed, without echo; what is written
// to it is treated as before. restore undoes that, and keeps what was typed.
func SetRaw(tty *os.File) (restore func(), err error) {
	fd := int(tty.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	raw := *before
	raw.Iflag &^= unix.IXON | unix.ICRNL | unix.INLCR | unix.IGNCR | unix.ISTRIP
	raw.Lflag &^= unix.ICANON | unix.ECHO | unix.ISIG | unix.IEXTEN
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return nil, err
	}
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, before) }, nil
}

// pausableFile is a file whose reader can be held back, also while it waits.
type pausableFile struct {
	f *os.File
	// reading is held by who reads, or holds reading back, which wake interrupts. It
	// guards closed, after which f is not used.
	reading             sync.Mutex
	closed              bool
	wakeReader, wakeEnd *os.File
}

// newPausableFile returns nil if the reader of a file can't be held back.
func newPausableFile(f *os.File) *pausableFile {
	r, w, err := os.Pipe()
	if err != nil {
		return nil
	}
	return &pausableFile{f: f, wakeReader: r, wakeEnd: w}
}

// read reads what there is. It returns 0 bytes if nothing came within a wait that is not
// negative, or if reading was held back, and [os.ErrClosed] after close.
func (p *pausableFile) read(buf []byte, wait time.Duration) (int, error) {
	p.reading.Lock()
	defer p.reading.Unlock()
	if p.closed {
		return 0, os.ErrClosed
	}
	fds := []unix.PollFd{{Fd: int32(p.f.Fd()), Events: unix.POLLIN}, {Fd: int32(p.wakeReader.Fd()), Events: unix.POLLIN}} //nolint:gosec // descriptors are small
	limit := -1
	if wait >= 0 {
		limit = int(wait.Milliseconds())
	}
	switch n, err := unix.Poll(fds, limit); {
	case errors.Is(err, unix.EINTR), err == nil && n == 0, fds[1].Revents != 0:
		return 0, nil
	case err != nil:
		return 0, err
	}
	n, err := unix.Read(int(p.f.Fd()), buf)
	switch {
	case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		return 0, nil
	case n <= 0 && err == nil:
		return 0, io.EOF
	}
	return max(n, 0), err
}

// pause holds reading back until resume is called.
func (p *pausableFile) pause() (resume func()) {
	_, _ = p.wakeEnd.Write([]byte{0})
	p.reading.Lock()
	return func() {
		_, _ = p.wakeReader.Read(make([]byte, 1))
		p.reading.Unlock()
	}
}

// close ends reading. The file itself stays open.
func (p *pausableFile) close() {
	resume := p.pause()
	p.closed = true
	resume()
}
