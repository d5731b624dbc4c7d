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

// escapeTime is how long the rest of an escape sequence may take. After it, the escape
// was a key.
const escapeTime = 50 * time.Millisecond

// maxAnswer bounds a typed answer to a question, with its reason.
const maxAnswer = 1000

// maxRest bounds the answers that wait to be read.
const maxRest = 64

// Keyboard reads a terminal. It passes input to the composer, or to a question if one
// is shown. It is safe for concurrent use.
type Keyboard struct {
	in io.Reader
	// raw means single keys. Otherwise the terminal edits lines.
	raw bool
	// echo shows the answer typed so far.
	echo func(typed string, done bool)
	keys chan key
	file *pausableFile // nil if reading can't be interrupted

	mu     sync.Mutex
	asking bool
	// single means that each key is an answer.
	single  bool
	typed   string
	answers chan string
	ended   bool
}

// NewKeyboard returns the keyboard of a terminal, or of other input with lines. Only a
// raw keyboard calls echo, with the answer typed so far.
func NewKeyboard(in io.Reader, raw bool, echo func(typed string, done bool)) *Keyboard {
	k := &Keyboard{in: in, raw: raw, echo: echo, keys: make(chan key, 64), answers: make(chan string, maxRest)}
	if f, ok := in.(*os.File); ok {
		k.file = newPausableFile(f)
	}
	return k
}

// Start begins to read.
func (k *Keyboard) Start() { go k.readKeys() }

// Close ends reading if possible. The input stays open and is not used afterwards.
// Close doesn't wait for anyone to take the keys that were read.
func (k *Keyboard) Close() {
	if k.file != nil {
		k.file.close()
	}
}

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

// readSome reads the available input. It returns 0 after wait, if that is not negative.
func (k *Keyboard) readSome(buf []byte, wait time.Duration) (int, error) {
	if k.file == nil {
		return k.in.Read(buf)
	}
	return k.file.read(buf, wait)
}

// lineKeys returns the lines of a read. From a terminal, that is one line.
func lineKeys(text string) []key {
	var keys []key
	for l := range strings.Lines(text) {
		keys = append(keys, key{kind: keyLine, text: strings.TrimRight(l, "\r\n")})
	}
	return keys
}

// endInput reports the end of input.
func (k *Keyboard) endInput() {
	k.mu.Lock()
	k.ended = true
	close(k.answers)
	k.mu.Unlock()
	k.keys <- key{kind: keyEOF}
}

// routeKey passes a key to the question or the composer.
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

// SetSingle makes each key an answer that the question shows itself, or switches back
// to lines.
func (k *Keyboard) SetSingle(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.single = on
	k.dropTyped()
}

// Typed returns the next typed answer, or "" after wait.
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

// otherKey is the answer of a paste or a key without a character.
const otherKey = "\x1b"

// answerKey adds a key to the answer and reports whether that is complete and changed.
// A paste counts as one key.
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
		k.typed = k.typed[:len(k.typed)-lastCharacter(k.typed)]
	case pressed.kind == keyText && !pressed.ctrl && !pressed.alt && len(k.typed) < maxAnswer:
		safe, _ := tools.Display(pressed.text)
		k.typed += safe
	default:
		return "", false, false
	}
	return k.typed, false, true
}

// lastCharacter returns the size of a text's last character, in bytes.
func lastCharacter(text string) int {
	size := 0
	for text != "" {
		cluster, _ := ansi.FirstGraphemeCluster(text, ansi.GraphemeWidth)
		size = len(cluster)
		text = text[size:]
	}
	return size
}

// deliverAnswer passes an answer to the question, unless that is gone or has one.
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

// Ask begins or ends a question. It drops what was typed before.
func (k *Keyboard) Ask(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asking = on
	k.dropTyped()
}

// dropTyped forgets typed answers. The caller holds mu.
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

// Read returns the next answer to a question, a line or a key.
func (k *Keyboard) Read(p []byte) (int, error) {
	answer, ok := <-k.answers
	if !ok {
		return 0, io.EOF
	}
	return copy(p, answer), nil
}

// Pressed calls pressed, which waits for a key and drops it, while the keyboard is
// paused. Then it drops what was typed before.
func (k *Keyboard) Pressed(ctx context.Context, wait time.Duration, pressed func(context.Context, time.Duration) (bool, error)) (bool, error) {
	defer k.Pause()()
	found, err := pressed(ctx, wait)
	k.mu.Lock()
	defer k.mu.Unlock()
	early := k.typed != ""
	k.dropTyped()
	return found || early, err
}

// Pause stops reading until resume is called, if possible.
func (k *Keyboard) Pause() (resume func()) {
	if k.file == nil {
		return func() {}
	}
	return k.file.pause()
}

// SetRaw makes a terminal deliver keys as they are pressed, without echo. Output is
// unchanged. restore undoes it and keeps what was typed.
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

// pausableFile is a file whose reader can be paused, even while it waits.
type pausableFile struct {
	f *os.File
	// reading is held by the reader, or by pause, which uses the wake pipe to interrupt
	// the reader. It guards closed, after which f is not used.
	reading             sync.Mutex
	closed              bool
	wakeReader, wakeEnd *os.File
}

// newPausableFile returns nil if it can't make a pipe.
func newPausableFile(f *os.File) *pausableFile {
	r, w, err := os.Pipe()
	if err != nil {
		return nil
	}
	return &pausableFile{f: f, wakeReader: r, wakeEnd: w}
}

// read reads the available input. It returns 0 bytes if it was paused or nothing came
// within wait, which is not limited if negative. After close it returns [os.ErrClosed].
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

// pause stops reading until resume is called.
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
