// Package wiretest plays transcripts of model servers to an adapter, under the real
// loop. It is for packages beside loop/internal.
//
// A transcript is a text file. Its head names sources and versions. Cases follow:
//
//	== NAME
//	-- 200 text/event-stream        a response: status, media type, headers as Name=value
//	data: …                         its body, byte for byte
//	-- cut                          the connection is cut instead of the response's end
//	=> ran NAME ARGUMENTS           a call that has to run, in order
//	=> refused NUMBER               calls that must not run, because of their arguments
//	=> answer TEXT                  the answer of a turn that ends with one, its words
//	=> fails CLASS                  or the class of the failure that ends it
//	=> says WORDS                   a part of that failure
//	=> requests NUMBER              requests that the server receives
//
// After a case's last response, the server answers with the word Done, in its protocol.
package wiretest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/tools"
)

// Adapter makes the models under test.
type Adapter struct {
	// New returns a model of the server at url. The test closes it.
	New func(t *testing.T, url string, o Timeouts) loop.Model
	// Done is an answer with the word Done.
	Done string
	// End reports whether part of a response's body contains the answer's end.
	End func(body string) bool
}

// Timeouts are an adapter's; zero means its defaults.
type Timeouts struct{ Header, Idle, Answer time.Duration }

type transcript struct {
	name      string
	responses []response
	ran       []string
	refused   int
	answer    string
	fails     loop.ErrorClass
	says      string
	requests  int
}

type response struct {
	status int
	header http.Header
	body   string
	cut    bool
}

// TestFile plays each case of a file, in lines and in small pieces. Answers with calls
// are also played broken off after each line.
func TestFile(t *testing.T, name string, a Adapter) {
	for _, c := range readFile(t, name) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, size := range []int{0, 7} {
				played := playCase(t, a, c.responses, size, 1)
				played.checkOutcome(t, c)
			}
			if len(c.ran) > 0 && c.responses[0].status == http.StatusOK {
				testBroken(t, a, c)
			}
		})
	}
}

// testBroken breaks the first response off at many places: no call runs unless the
// answer's end arrived, and the turn ends with a typed failure.
func testBroken(t *testing.T, a Adapter, c transcript) {
	t.Helper()
	whole := c.responses[0]
	inPieces := whole.header.Get("Content-Type") != "application/json"
	cuts := 0
	for i := range len(whole.body) {
		// Also in the middle of lines, so that JSON is cut.
		if whole.body[i] != '\n' && i%97 != 96 {
			continue
		}
		r := whole
		r.body, r.cut = whole.body[:i+1], true
		if inPieces && a.End(r.body) || len(r.body) == len(whole.body) {
			continue
		}
		cuts++
		played := playCase(t, a, []response{r}, 0, 0)
		if len(played.Ran) > 0 || played.refused > 0 {
			t.Errorf("broken off after %d bytes: ran %q, refused %d", i+1, played.Ran, played.refused)
		}
		if failure := played.findFailure(t); failure == nil || failure.Class != loop.ModelNetwork {
			t.Errorf("broken off after %d bytes: %s, %v", i+1, played.outcome.Reason, played.outcome.Err)
		}
	}
	if cuts == 0 {
		t.Error("the answer was never broken off")
	}
}

type played struct {
	Dispatcher
	outcome  loop.Outcome
	refused  int
	requests int
}

func newPlayed() *played {
	return &played{Dispatcher: Dispatcher{Tools: []tools.Name{"shell", "read_file", "get_weather"}}}
}

// playCase runs one turn with a server that sends the responses in pieces of the given
// size, or in lines if it is 0.
func playCase(t *testing.T, a Adapter, responses []response, size, retries int) *played {
	t.Helper()
	p := newPlayed()
	var mu sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		p.requests++
		n := p.requests
		mu.Unlock()
		if n > len(responses) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(a.Done))
			return
		}
		responses[n-1].sendPieces(w, size)
	}))
	defer server.Close()
	out, err := loop.Run(t.Context(), loop.Options{
		Profiles:   []loop.Profile{{Model: a.New(t, server.URL, Timeouts{}), MaxRetries: &retries}},
		Dispatcher: &p.Dispatcher, Session: "ses_1", Turn: "trn_1",
		Messages: []loop.Message{loop.NewText(loop.RoleUser, "Go.")},
		Emit: func(e loop.Event) error {
			if _, ok := e.(loop.CallRefused); ok {
				p.refused++
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	p.outcome = out
	p.refused += len(p.Refused)
	return p
}

func (r response) sendPieces(w http.ResponseWriter, size int) {
	maps.Copy(w.Header(), r.header)
	w.WriteHeader(r.status)
	for body := []byte(r.body); len(body) > 0; {
		n := size
		if n == 0 {
			n = bytes.IndexByte(body, '\n') + 1
		}
		if n == 0 || n > len(body) {
			n = len(body)
		}
		if _, err := w.Write(body[:n]); err != nil {
			return
		}
		w.(http.Flusher).Flush()
		body = body[n:]
	}
	if r.cut {
		panic(http.ErrAbortHandler)
	}
}

// findFailure returns the failure that ended the turn, or nil. It fails the test if the
// turn ended neither with that nor an answer.
func (p *played) findFailure(t *testing.T) *loop.ModelError {
	t.Helper()
	failure, ok := errors.AsType[*loop.ModelError](p.outcome.Err)
	if p.outcome.Reason != loop.StopAnswered && !ok {
		t.Errorf("end %s without a typed failure: %v", p.outcome.Reason, p.outcome.Err)
	}
	return failure
}

func (p *played) checkOutcome(t *testing.T, c transcript) {
	t.Helper()
	if diff := cmp.Diff(c.ran, p.Ran); diff != "" {
		t.Errorf("calls that ran (-want +got):\n%s", diff)
	}
	if distinct := slices.Compact(slices.Sorted(slices.Values(p.IDs))); len(distinct) != len(p.IDs) {
		t.Errorf("a call ran twice: %q", p.IDs)
	}
	if p.refused != c.refused || p.requests != c.requests {
		t.Errorf("refused %d calls and sent %d requests, want %d and %d", p.refused, p.requests, c.refused, c.requests)
	}
	failure := p.findFailure(t)
	if failure == nil {
		if c.fails != "" || strings.Join(strings.Fields(p.outcome.Answer), " ") != c.answer {
			t.Errorf("answer %q, want %q, or the failure %s", p.outcome.Answer, c.answer, c.fails)
		}
		return
	}
	if failure.Class != c.fails || !strings.Contains(failure.Error(), c.says) {
		t.Errorf("failure %v, want class %q and the words %q", failure, c.fails, c.says)
	}
}

func readFile(t *testing.T, name string) []transcript {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(data), "\n== ")
	for _, word := range []string{"Source: ", "Version: "} {
		if !strings.Contains(head, word) {
			t.Fatalf("%s: the head has no %q", name, word)
		}
	}
	if !ok {
		t.Fatalf("%s has no case", name)
	}
	var out []transcript
	for text := range strings.SplitSeq(rest, "\n== ") {
		c, err := parseCase(text)
		if err != nil {
			t.Fatalf("%s: %s: %v", name, c.name, err)
		}
		out = append(out, c)
	}
	return out
}

func parseCase(text string) (transcript, error) {
	title, body, _ := strings.Cut(text, "\n")
	c := transcript{name: title}
	for line := range strings.SplitSeq(strings.TrimSuffix(body, "\n"), "\n") {
		var err error
		last := len(c.responses) - 1
		switch kind, value, _ := strings.Cut(line, " "); {
		case line == "-- cut" && last >= 0:
			c.responses[last].cut = true
			c.responses[last].body = strings.TrimSuffix(c.responses[last].body, "\n")
		case kind == "--":
			err = c.addResponse(value)
		case kind == "=>":
			err = c.addExpectation(value)
		case last >= 0:
			c.responses[last].body += line + "\n"
		default:
			err = fmt.Errorf("line %q is in no response", line)
		}
		if err != nil {
			return c, err
		}
	}
	if c.requests == 0 || c.answer == "" && c.fails == "" {
		return c, errors.New("no requests, or no end")
	}
	return c, nil
}

func (c *transcript) addResponse(text string) error {
	fields := strings.Fields(text)
	if len(fields) < 2 {
		return fmt.Errorf("response %q has no status and media type", text)
	}
	status, err := strconv.Atoi(fields[0])
	if err != nil {
		return err
	}
	r := response{status: status, header: http.Header{"Content-Type": {fields[1]}}}
	for _, f := range fields[2:] {
		name, value, _ := strings.Cut(f, "=")
		r.header.Set(name, value)
	}
	c.responses = append(c.responses, r)
	return nil
}

func (c *transcript) addExpectation(text string) error {
	kind, value, _ := strings.Cut(text, " ")
	var err error
	switch kind {
	case "ran":
		c.ran = append(c.ran, value)
	case "refused":
		c.refused, err = strconv.Atoi(value)
	case "answer":
		c.answer = value
	case "fails":
		c.fails = loop.ErrorClass(value)
	case "says":
		c.says = value
	case "requests":
		c.requests, err = strconv.Atoi(value)
	default:
		err = fmt.Errorf("unknown expectation %q", text)
	}
	return err
}
