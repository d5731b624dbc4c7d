// Package mockmodel is a model provider for tests and trials. It speaks four
// protocols, streamed and not, and plays a script:
//
//	POST /v1/messages, /v1/messages/count_tokens          Anthropic Messages
//	POST /v1/responses, /v1/responses/compact             OpenAI Responses
//	POST /v1/chat/completions                             OpenAI Chat Completions
//	POST /v1beta/models/M:generateContent,
//	     :streamGenerateContent, :countTokens             Gemini
//
// The version in front may be missing. It checks no key and no field of a request.
package mockmodel

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/limits"
)

// Step is one answer. The zero value is the text "Done.".
type Step struct {
	Text  string
	Calls []Call
	// Usage is nil for an estimate of 4 bytes per token. NoUsage leaves it out of the
	// answer.
	Usage   *limits.Usage
	NoUsage bool
	// Truncated makes the limit on output the reason for the answer's end.
	Truncated bool

	// Status, unless it is 0, makes the step a refusal with this status and Message.
	// Header is added to answers and refusals.
	Status  int
	Header  http.Header
	Message string

	// Pause is the time before each piece of a stream, and before a whole answer.
	Pause time.Duration
	// Endless repeats Text until the client has gone, with a number before each, since
	// some agents end an answer that repeats itself. Broken cuts a stream off before its
	// last events.
	Endless, Broken bool
}

// Call is a tool call.
type Call struct {
	Name      string
	Arguments string // a JSON object
}

// Request is a request that a [Model] answered or refused.
type Request struct {
	Method, Path, Query string
	Header              http.Header
	Body                []byte
}

// Model is a provider's handler. It is safe for concurrent use. Set the fields
// before the first request.
type Model struct {
	// Steps are the answers to requests in the order of arrival; the last one
	// repeats.
	Steps []Step
	// Side, if set, answers the requests that offer no tools, outside the script.
	// Agents send such requests for titles.
	Side *Step

	mu       sync.Mutex
	next     int
	requests []Request
}

// Requests returns the requests so far.
func (m *Model) Requests() []Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Request(nil), m.requests...)
}

// pieceBytes is the length of a piece of text in a stream.
const pieceBytes = 24

// asked has the fields of a request on which the answer depends.
type asked struct {
	Model         string            `json:"model"`
	Stream        bool              `json:"stream"`
	Tools         []json.RawMessage `json:"tools"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// maxBody bounds a request's body.
const maxBody = 64 << 20

// ServeHTTP implements [http.Handler].
func (m *Model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return
	}
	m.mu.Lock()
	m.requests = append(m.requests, Request{r.Method, r.URL.EscapedPath(), r.URL.RawQuery, r.Header.Clone(), body})
	m.mu.Unlock()
	a := &answer{w: w, r: r, size: int64(len(body))}
	path := r.URL.Path
	for _, version := range []string{"/v1beta", "/v1"} {
		path = strings.TrimPrefix(path, version)
	}
	gemini, action, _ := strings.Cut(strings.TrimPrefix(path, "/models/"), ":")
	if err := json.Unmarshal(body, &a.asked); r.Method != http.MethodPost || err != nil {
		a.refuse(path, http.StatusBadRequest, "want a POST with a JSON object")
		return
	}
	var write func()
	switch {
	case path == "/messages":
		write = a.writeMessage
	case path == "/responses":
		write = a.writeResponse
	case path == "/chat/completions":
		write = a.writeChat
	case action == "generateContent", action == "streamGenerateContent":
		a.asked.Model, a.asked.Stream = gemini, action == "streamGenerateContent"
		write = a.writeGemini
	case path == "/messages/count_tokens":
		a.writeJSON(object{"input_tokens": a.inputTokens()})
	case action == "countTokens":
		a.writeJSON(object{"totalTokens": a.inputTokens()})
	case path == "/responses/compact":
		a.writeJSON(object{
			"id": "resp_mock", "object": "response.compaction", "created_at": created,
			"output": []object{{"type": "compaction", "id": "cmp_mock", "encrypted_content": "bW9jaw=="}}, "usage": a.responsesUsage(),
		})
	default:
		a.refuse(path, http.StatusNotFound, "no such endpoint")
	}
	if write != nil {
		// Codex offers its tools to some models in an item of the input.
		a.step = m.takeStep(len(a.asked.Tools) > 0 || bytes.Contains(body, []byte(`"additional_tools"`)))
		a.play(path, write)
	}
}

// takeStep returns the next step of the script, or the side answer.
func (m *Model) takeStep(tools bool) Step {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !tools && m.Side != nil {
		return *m.Side
	}
	if len(m.Steps) == 0 {
		return Step{}
	}
	s := m.Steps[min(m.next, len(m.Steps)-1)]
	m.next++
	return s
}

type object = map[string]any

// answer is the answer to one request. Its methods stop if the client has gone.
type answer struct {
	w     http.ResponseWriter
	r     *http.Request
	step  Step
	asked asked
	size  int64 // of the request's body
	sent  int64 // bytes of text and arguments
	// begun is true once the stream's header was sent, gone once the client has left.
	begun, gone bool
	sequence    int
}

// created is the time in every answer. It is fixed, so that the same request gets the
// same answer.
const created = 1_764_547_200

func (a *answer) play(path string, write func()) {
	if a.step.Text == "" && len(a.step.Calls) == 0 {
		a.step.Text = "Done."
	}
	maps.Copy(a.w.Header(), a.step.Header)
	if a.step.Status != 0 {
		a.refuse(path, a.step.Status, cmp.Or(a.step.Message, "refused by the script"))
		return
	}
	write()
}

// refuse writes an error in the protocol of a path.
func (a *answer) refuse(path string, status int, message string) {
	var body object
	switch {
	case strings.HasPrefix(path, "/messages"):
		kind := map[int]string{400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 529: "overloaded_error"}[status]
		body = object{"type": "error", "error": object{"type": cmp.Or(kind, "api_error"), "message": message}, "request_id": "req_mock"}
	case strings.HasPrefix(path, "/models/"):
		kind := map[int]string{400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}[status]
		body = object{"error": object{"code": status, "message": message, "status": cmp.Or(kind, "INTERNAL")}}
	default:
		body = object{"error": object{"message": message, "type": "invalid_request_error", "param": nil, "code": nil}}
	}
	a.w.Header().Set("Content-Type", "application/json")
	a.w.WriteHeader(status)
	_ = json.NewEncoder(a.w).Encode(body) // a client that has gone needs no answer
}

// pause waits for the step's pause, and reports whether the client is still there.
func (a *answer) pause() bool {
	select {
	case <-time.After(a.step.Pause):
	case <-a.r.Context().Done():
		a.gone = true
	}
	return !a.gone
}

func (a *answer) writeJSON(v object) {
	if !a.pause() {
		return
	}
	a.w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(a.w).Encode(v) // a client that has gone needs no answer
}

// sendRaw sends one piece of a stream.
func (a *answer) sendRaw(contentType, text string) {
	if !a.begun {
		a.begun = true
		a.w.Header().Set("Content-Type", contentType)
		a.w.Header().Set("Cache-Control", "no-cache")
	}
	if a.gone || !a.pause() {
		return
	}
	if _, err := io.WriteString(a.w, text); err != nil {
		a.gone = true
		return
	}
	_ = http.NewResponseController(a.w).Flush() // the next write shows the failure
}

// send sends an event. It has no name if name is empty.
func (a *answer) send(name string, v any) {
	prefix := ""
	if name != "" {
		prefix = "event: " + name + "\n"
	}
	a.sendRaw("text/event-stream; charset=utf-8", prefix+"data: "+string(mustJSON(v))+"\n\n")
}

// mustJSON encodes an event. It panics if the script's arguments are not JSON.
func mustJSON(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("a step is not JSON: %v", err))
	}
	return data
}

// stop ends a broken stream, whose connection the server then closes.
func (a *answer) stop() {
	if a.step.Broken && !a.gone {
		panic(http.ErrAbortHandler)
	}
}

// forPieces calls send with the pieces of a text, again and again if it is endless.
func (a *answer) forPieces(text string, endless bool, send func(piece string)) {
	for n := 1; ; n++ {
		rest := text
		if endless {
			rest = strconv.Itoa(n) + " " + text
		}
		for rest != "" && !a.gone {
			piece := rest[:min(pieceBytes, len(rest))]
			for n := len(piece); n < len(rest) && n < len(piece)+4 && rest[n]&0xc0 == 0x80; n++ {
				piece = rest[:n+1] // whole characters
			}
			rest = rest[len(piece):]
			a.sent += int64(len(piece))
			send(piece)
		}
		if !endless || a.gone {
			return
		}
	}
}

func (a *answer) inputTokens() int64 { return (a.size + 3) / 4 }

// usage returns the step's usage, and false if the answer has none.
func (a *answer) usage() (limits.Usage, bool) {
	if a.step.Usage != nil {
		return *a.step.Usage, !a.step.NoUsage
	}
	return limits.Usage{InputTokens: a.inputTokens(), OutputTokens: (a.sent + 3) / 4}, !a.step.NoUsage
}

func callID(prefix string, i int, seed int64) string {
	return fmt.Sprintf("%s_mock%d_%d", prefix, seed, i)
}

// countWhole counts the content of an answer that is not streamed.
func (a *answer) countWhole() {
	a.sent = int64(len(a.step.Text))
	for _, c := range a.step.Calls {
		a.sent += int64(len(c.Arguments))
	}
}

// arguments returns a call's arguments as a JSON object.
func (c Call) arguments() json.RawMessage { return json.RawMessage(cmp.Or(c.Arguments, "{}")) }
