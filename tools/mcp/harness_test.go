package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeProcess is a server inside the test, with pipes as a process has them.
type fakeProcess struct {
	stdin  *io.PipeWriter
	stdout *io.PipeReader
	cancel context.CancelFunc
	exited chan struct{}
	err    error
}

func (p *fakeProcess) Stdin() io.WriteCloser { return p.stdin }
func (p *fakeProcess) Stdout() io.Reader     { return p.stdout }

func (p *fakeProcess) Wait() error {
	<-p.exited
	return p.err
}

func (p *fakeProcess) Stop(ctx context.Context) error {
	_ = p.stdin.Close()
	p.cancel()
	_ = p.stdout.Close()
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// serverFunc is a server: it reads in and writes out until it returns, which is the
// end of the process. ctx ends when the process is stopped.
type serverFunc func(ctx context.Context, in io.Reader, out io.WriteCloser, stderr io.Writer) error

func (f serverFunc) start(stderr io.Writer) *fakeProcess {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	p := &fakeProcess{stdin: inW, stdout: outR, cancel: cancel, exited: make(chan struct{})}
	go func() {
		p.err = f(ctx, inR, outW, stderr)
		cancel()
		_ = outW.Close()
		_ = inR.CloseWithError(io.ErrClosedPipe)
		close(p.exited)
	}()
	return p
}

// sdkServer serves with the SDK, as real servers do.
func sdkServer(setUp func(s *mcp.Server)) serverFunc {
	return func(ctx context.Context, in io.Reader, out io.WriteCloser, _ io.Writer) error {
		s := mcp.NewServer(&mcp.Implementation{Name: "fake", Version: "1.2.3"}, nil)
		setUp(s)
		return s.Run(ctx, &mcp.IOTransport{Reader: io.NopCloser(in), Writer: out})
	}
}

// addTool adds a tool that answers with its own name.
func addTool(s *mcp.Server, name string) {
	s.AddTool(&mcp.Tool{Name: name, Description: "Tool " + name + ".", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: name}}}, nil
		})
}

// message is what a raw server reads.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// rawConn is the connection of a server that writes what it likes.
type rawConn struct {
	ctx    context.Context
	in     *bufio.Scanner
	out    io.WriteCloser
	stderr io.Writer
}

func (c *rawConn) read() (message, error) {
	var m message
	if !c.in.Scan() {
		return m, cmpErr(c.in.Err(), io.EOF)
	}
	return m, json.Unmarshal(c.in.Bytes(), &m)
}

func cmpErr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

func (c *rawConn) send(text string) error {
	_, err := io.WriteString(c.out, text+"\n")
	return err
}

func (c *rawConn) reply(m message, result string) error {
	return c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result))
}

const (
	initializeResult = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"raw","version":"0"}}`
	emptySchema      = `{"type":"object"}`
)

// toolsResult lists tools with an empty schema.
func toolsResult(names ...string) string {
	var list []string
	for _, name := range names {
		quoted, _ := json.Marshal(name)
		list = append(list, fmt.Sprintf(`{"name":%s,"description":"d","inputSchema":%s}`, quoted, emptySchema))
	}
	return `{"tools":[` + strings.Join(list, ",") + `]}`
}

// rawServer is a server that does the handshake, lists one tool named "t", and passes
// everything else to handle. handle may be nil.
func rawServer(handle func(c *rawConn, m message) error) serverFunc {
	return rawServerWith(func(c *rawConn, m message) (bool, error) {
		switch m.Method {
		case "tools/call":
			if handle != nil {
				return true, handle(c, m)
			}
			return true, c.reply(m, `{"content":[{"type":"text","text":"done"}]}`)
		}
		return false, nil
	})
}

// rawServerWith is a server for which handle answers first.
func rawServerWith(handle func(c *rawConn, m message) (handled bool, err error)) serverFunc {
	return func(ctx context.Context, in io.Reader, out io.WriteCloser, stderr io.Writer) error {
		c := &rawConn{ctx: ctx, in: bufio.NewScanner(in), out: out, stderr: stderr}
		c.in.Buffer(nil, 64<<20)
		for {
			m, err := c.read()
			if err != nil {
				return nil //nolint:nilerr // the end of the input is the end of a server
			}
			handled, err := handle(c, m)
			if err != nil {
				return err
			}
			if handled {
				continue
			}
			switch m.Method {
			case "initialize":
				err = c.reply(m, initializeResult)
			case "tools/list":
				err = c.reply(m, toolsResult("t"))
			case "tools/call":
				err = c.reply(m, `{"content":[{"type":"text","text":"done"}]}`)
			}
			if err != nil {
				return err
			}
		}
	}
}

// harness is a Set of fake servers with a registry of tools.
type harness struct {
	*Set
	registry tools.Registry

	mu     sync.Mutex
	events []Event
	starts map[string]int
}

// newHarness makes a Set whose servers are functions. change may alter the options.
func newHarness(t testing.TB, servers map[string]serverFunc, change func(*Options)) *harness {
	t.Helper()
	h := &harness{starts: map[string]int{}}
	o := Options{
		Launch: func(_ context.Context, s Server, stderr io.Writer) (Process, error) {
			f := servers[s.Name]
			if f == nil {
				return nil, errors.New("no such program")
			}
			h.mu.Lock()
			h.starts[s.Name]++
			h.mu.Unlock()
			return f.start(stderr), nil
		},
		Register:   h.registry.Register,
		Unregister: func(name tools.Name) { h.registry.Unregister(string(name)) },
		Report: func(e Event) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.events = append(h.events, e)
		},
		Roots:  "file:///workspace",
		Redact: func(text string) string { return text },
		Log:    zap.NewNop(),
	}
	for name := range servers {
		o.Servers = append(o.Servers, Server{Name: name, Command: name})
	}
	slices.SortFunc(o.Servers, func(a, b Server) int { return strings.Compare(a.Name, b.Name) })
	if change != nil {
		change(&o)
	}
	set, err := NewSet(o)
	if err != nil {
		t.Fatal(err)
	}
	h.Set = set
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := set.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return h
}

// startHarness is newHarness, started.
func startHarness(t testing.TB, servers map[string]serverFunc, change func(*Options)) *harness {
	t.Helper()
	h := newHarness(t, servers, change)
	h.Start(t.Context())
	return h
}

// call calls a tool by its canonical name.
func (h *harness) call(ctx context.Context, name, input string) (tools.Output, error) {
	return h.callWith(ctx, name, input, func(string, string) {})
}

func (h *harness) callWith(ctx context.Context, name, input string, delta func(stream, text string)) (tools.Output, error) {
	registered, ok := h.registry.Find(name)
	if !ok {
		return tools.Output{}, fmt.Errorf("tool %q is not registered", name)
	}
	return registered.New().Execute(ctx, &tools.Call{Name: tools.Name(name), Input: json.RawMessage(input), Delta: delta, ResultBytes: tools.DefaultResultBytes})
}

// outputText is the text of an output.
func outputText(out tools.Output) string {
	var texts []string
	for _, b := range out.Content {
		texts = append(texts, b.Text)
	}
	return strings.Join(texts, "\n")
}

// eventsOf returns the events of one type.
func eventsOf[E Event](h *harness) []E {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []E
	for _, e := range h.events {
		if e, ok := e.(E); ok {
			found = append(found, e)
		}
	}
	return found
}

// names returns the registered tools.
func (h *harness) names() []string {
	var names []string
	for _, t := range h.registry.All() {
		names = append(names, string(t.Definition.Name))
	}
	return names
}

// startsOf returns how often a server was launched.
func (h *harness) startsOf(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.starts[name]
}
