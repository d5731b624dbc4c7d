package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"golang.org/x/time/rate"
)

// frameLimits bound what a stdio server may send.
type frameLimits struct {
	// lineBytes bounds one line, depth the nesting of its JSON, and values the
	// values in it, each of which takes up to some 200 bytes when decoded.
	lineBytes, depth, values int
	// noiseLines and noiseBytes bound consecutive lines without a message.
	noiseLines, noiseBytes int
	// lines and bytes bound the rates.
	lines, bytes pace
	// unanswered bounds the server's requests that wait for a response.
	unanswered int
}

// pace is a rate per second, after a burst.
type pace struct {
	limit rate.Limit
	burst int
}

func (p pace) newLimiter() *rate.Limiter { return rate.NewLimiter(p.limit, p.burst) }

// defaultFrameLimits are far above what servers need. Many servers print a banner
// or log to standard output. Other clients skip such lines without a bound.
var defaultFrameLimits = frameLimits{
	lineBytes: 8 << 20, depth: 128, values: 200_000,
	noiseLines: 1000, noiseBytes: 1 << 20,
	lines: pace{1000, 10_000}, bytes: pace{32 << 20, 256 << 20},
	unanswered: 64,
}

// framer reads messages from lines and enforces the limits. Only one goroutine may
// read. The other methods are safe beside it.
type framer struct {
	limits frameLimits
	in     *bufio.Reader
	// noise gets lines without a message.
	noise                  io.Writer
	noiseLines, noiseBytes int
	lines, bytes           *rate.Limiter

	mu sync.Mutex
	// sent holds the ids of requests without a response. An answer to a cancelled
	// request is no violation.
	sent       map[int64]struct{}
	unanswered int
}

func newFramer(r io.Reader, noise io.Writer, limits frameLimits) *framer {
	return &framer{
		limits: limits, in: bufio.NewReaderSize(r, 64<<10), noise: noise,
		lines: limits.lines.newLimiter(), bytes: limits.bytes.newLimiter(),
		sent: map[int64]struct{}{},
	}
}

// readMessage returns the next message. The error is a [*ProtocolError] or the
// reader's.
func (f *framer) readMessage() (jsonrpc.Message, error) {
	for {
		line, err := f.readLine()
		if err != nil {
			return nil, err
		}
		msg, err := f.parseLine(line)
		if err != nil || msg != nil {
			return msg, err
		}
	}
}

// readLine returns the next line without its end, which the last line may lack. The
// caller owns the line.
func (f *framer) readLine() ([]byte, error) {
	var line []byte
	for {
		part, err := f.in.ReadSlice('\n')
		if len(line)+len(part) > f.limits.lineBytes {
			return nil, &ProtocolError{fmt.Sprintf("a line of more than %d bytes", f.limits.lineBytes)}
		}
		line = append(line, part...)
		switch {
		case err == nil, errors.Is(err, io.EOF) && len(line) > 0:
			return bytes.TrimSpace(line), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// parseLine returns the message in a line, or nil if it has none.
func (f *framer) parseLine(line []byte) (jsonrpc.Message, error) {
	now := time.Now()
	if !f.lines.AllowN(now, 1) || !f.bytes.AllowN(now, len(line)) {
		return nil, &ProtocolError{"messages faster than the limit"}
	}
	// Every message has the member "jsonrpc". A line without it is a log record or
	// the like, even if it quotes a message.
	first, batch := bytes.CutPrefix(line, []byte("["))
	depth, values, versioned := scanObject(bytes.TrimSpace(first))
	if !versioned || batch && !json.Valid(line) {
		return nil, f.addNoise(line)
	}
	switch {
	case batch:
		return nil, &ProtocolError{"a batch of messages"}
	case !utf8.Valid(line):
		return nil, &ProtocolError{"a message that is not valid UTF-8"}
	case depth > f.limits.depth:
		return nil, &ProtocolError{fmt.Sprintf("a message nested deeper than %d", f.limits.depth)}
	case values > f.limits.values:
		return nil, &ProtocolError{fmt.Sprintf("a message with more than %d values", f.limits.values)}
	case !json.Valid(line):
		return nil, &ProtocolError{"a message that is not valid JSON"}
	}
	msg, err := jsonrpc.DecodeMessage(line)
	if err != nil {
		return nil, f.acceptMalformed(line)
	}
	f.noiseLines, f.noiseBytes = 0, 0
	return msg, f.checkMessage(msg)
}

// acceptMalformed tolerates an error response without an id. JSON-RPC prescribes it
// if a request couldn't be read.
func (f *framer) acceptMalformed(line []byte) error {
	var head struct {
		ID    json.RawMessage `json:"id"`
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return &ProtocolError{"a malformed message"}
	}
	if head.Error != nil && (head.ID == nil || string(head.ID) == "null") {
		return f.addNoise(line)
	}
	return &ProtocolError{"a malformed message"}
}

func (f *framer) addNoise(line []byte) error {
	f.noiseLines++
	f.noiseBytes += len(line) + 1
	if f.noiseLines > f.limits.noiseLines || f.noiseBytes > f.limits.noiseBytes {
		return &ProtocolError{fmt.Sprintf("more than %d lines or %d bytes in a row that are no message", f.limits.noiseLines, f.limits.noiseBytes)}
	}
	_, err := f.noise.Write(append(line, '\n'))
	return err
}

// checkMessage matches a response with its request, and counts the server's
// requests.
func (f *framer) checkMessage(msg jsonrpc.Message) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch msg := msg.(type) {
	case *jsonrpc.Response:
		id, ok := msg.ID.Raw().(int64)
		if _, sent := f.sent[id]; !ok || !sent {
			return &ProtocolError{"a response to no open request"}
		}
		delete(f.sent, id)
	case *jsonrpc.Request:
		if !msg.IsCall() {
			return nil
		}
		if f.unanswered++; f.unanswered > f.limits.unanswered {
			return &ProtocolError{fmt.Sprintf("more than %d requests without taking the responses", f.limits.unanswered)}
		}
	}
	return nil
}

// noteSent notes a message. Call it before writing the message, because the response
// can arrive before the write returns.
func (f *framer) noteSent(msg jsonrpc.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if req, ok := msg.(*jsonrpc.Request); ok && req.IsCall() {
		if id, ok := req.ID.Raw().(int64); ok {
			f.sent[id] = struct{}{}
		}
	}
}

func (f *framer) noteWritten(msg jsonrpc.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := msg.(*jsonrpc.Response); ok {
		f.unanswered--
	}
}

// scanObject returns how deeply the object at the start of a text nests, an upper
// bound of its number of values, and whether it has a member "jsonrpc". The text
// need not be valid.
func scanObject(text []byte) (deepest, values int, versioned bool) {
	if len(text) == 0 || text[0] != '{' {
		return 0, 0, false
	}
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			start := i
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			if depth == 1 && bytes.HasPrefix(text[start:], []byte(`"jsonrpc"`)) && bytes.HasPrefix(bytes.TrimLeft(text[min(i+1, len(text)):], " \t"), []byte(":")) {
				versioned = true
			}
		case ',':
			values++
		case '{', '[':
			values++ // the first one in it, if there is one
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			if depth--; depth == 0 {
				return deepest, values, versioned
			}
		}
	}
	return deepest, values, versioned
}
