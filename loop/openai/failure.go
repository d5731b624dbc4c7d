package openai

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// errMalformed says that an answer is not what this wire has.
var errMalformed = errors.New("answer is not a chat completion")

// streamError is an error that came where an answer should be.
type streamError struct{ body []byte }

// Error says what the endpoint said.
func (e *streamError) Error() string { return "endpoint failed in its answer: " + explain(e.body) }

// refusal is what an endpoint answered instead of a completion.
type refusal struct {
	status int
	said   string
}

// Error gives the status and what was said.
func (e *refusal) Error() string {
	if e.said == "" {
		return fmt.Sprintf("endpoint answered %d %s", e.status, http.StatusText(e.status))
	}
	return fmt.Sprintf("endpoint answered %d %s: %s", e.status, http.StatusText(e.status), e.said)
}

// failure classes what went wrong. Texts may go to a log, so the key is taken
// out of what the endpoint said.
func (w *watch) failure(err error) error {
	inStream, ok := errors.AsType[*streamError](err)
	switch {
	case ok:
		status, said := statusOf(inStream.body), w.redact(explain(inStream.body))
		class := classify(status, said)
		return &loop.ModelError{Class: class, Status: status, ProviderMessage: shown(class, said), Err: &refusal{status: status, said: said}}
	case w.status != 0:
		said := w.redact(explain(w.body))
		class := classify(w.status, said)
		return &loop.ModelError{
			Class: class, Status: w.status, ProviderMessage: shown(class, said), RetryAfter: retryAfter(w.header),
			Err: &refusal{status: w.status, said: said},
		}
	case errors.Is(err, bufio.ErrTooLong): // one event of more than 32 MiB
		return w.failure(errTooLarge)
	case errors.Is(err, errMalformed), errors.Is(err, errTooLarge):
		return &loop.ModelError{
			Class: loop.ModelOther, Visible: true, Err: fmt.Errorf("model endpoint %s: %w", safeurl.String(w.options.BaseURL), err),
		}
	default:
		// The library's error repeats the whole URL; what is inside says why.
		if outer, ok := errors.AsType[*url.Error](err); ok {
			err = outer.Err
		}
		return &loop.ModelError{
			Class: loop.ModelNetwork, Visible: true, Err: fmt.Errorf("model endpoint %s: %w", safeurl.String(w.options.BaseURL), err),
		}
	}
}

// shown returns what users are shown of an endpoint's words: those about the
// request's model, key or quota, which they can do something about.
func shown(class loop.ErrorClass, said string) string {
	switch class {
	case loop.ModelInvalidRequest, loop.ModelAuth, loop.ModelRateLimit:
		return safeurl.InText(said)
	}
	return ""
}

// redact takes the key out of a text.
func (w *watch) redact(said string) string {
	if w.options.APIKey == "" {
		return said
	}
	return strings.ReplaceAll(said, w.options.APIKey, "[key]")
}

// classify classes a refusal by its status and what was said.
func classify(status int, said string) loop.ErrorClass {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return loop.ModelAuth
	case status == http.StatusTooManyRequests:
		return loop.ModelRateLimit
	case status == http.StatusRequestEntityTooLarge, overflows(said):
		return loop.ModelContextOverflow
	case status == http.StatusRequestTimeout, status >= http.StatusInternalServerError:
		return loop.ModelServer
	case status >= http.StatusBadRequest:
		return loop.ModelInvalidRequest
	default:
		return loop.ModelOther
	}
}

// overflows says that a refusal is about the length of the conversation. There
// is no common code: these are the words of OpenAI, vLLM, llama.cpp, Mistral,
// Groq, OpenRouter and the endpoints behind it.
func overflows(said string) bool {
	said = strings.ToLower(said)
	for _, words := range []string{
		"context_length", "context length", "context window", "context size", "maximum context", "max_model_len",
		"prompt is too long", "input is too long", "too many tokens", "too many input tokens", "reduce the length",
		"exceeds the maximum number of tokens", "string_above_max_length",
	} {
		if strings.Contains(said, words) {
			return true
		}
	}
	return false
}

// refusedParameter gives what was said where the endpoint found a parameter
// that it does not take.
func refusedParameter(err error) (string, bool) {
	failure, isFailure := errors.AsType[*loop.ModelError](err)
	refused, isRefusal := errors.AsType[*refusal](err)
	if !isFailure || !isRefusal || failure.Class == loop.ModelContextOverflow {
		return "", false
	}
	bad := refused.status == http.StatusBadRequest || refused.status == http.StatusUnprocessableEntity
	return refused.said, bad
}

// maxSaid bounds what is kept of an endpoint's words.
const maxSaid = 500

// explain takes the words out of an error's body: error.message, error,
// message, detail, with the code and type beside it, or the body itself.
func explain(body []byte) string {
	var parts []string
	var envelope map[string]json.RawMessage
	if json.Unmarshal(body, &envelope) == nil {
		for _, key := range []string{"error", "message", "detail"} {
			parts = append(parts, words(envelope[key])...)
		}
	}
	said := strings.Join(parts, "; ")
	if said == "" {
		said = string(body)
	}
	said = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(said, ""))
	if runes := []rune(said); len(runes) > maxSaid {
		said = string(runes[:maxSaid]) + "…"
	}
	return strings.TrimSpace(said)
}

// words are the texts of one member of an error's body.
func words(raw json.RawMessage) []string {
	if len(raw) == 0 {
		return nil
	}
	var inner struct {
		Message, Code, Type, Param loose
	}
	if json.Unmarshal(raw, &inner) == nil {
		var out []string
		for _, s := range []loose{inner.Message, inner.Code, inner.Type, inner.Param} {
			if s != "" {
				out = append(out, string(s))
			}
		}
		return out
	}
	var l loose
	_ = l.UnmarshalJSON(raw)
	if l == "" {
		return nil
	}
	return []string{string(l)}
}

// statusOf is the HTTP status that an error inside an answer names, or 0.
func statusOf(body []byte) int {
	var envelope struct {
		Error struct {
			Code, Status loose
		} `json:"error"`
	}
	_ = json.Unmarshal(body, &envelope) // an error that is a string has no status
	for _, s := range []loose{envelope.Error.Code, envelope.Error.Status} {
		if n, err := strconv.Atoi(string(s)); err == nil && n >= 400 && n < 600 {
			return n
		}
	}
	if said := strings.ToLower(string(body)); strings.Contains(said, "rate_limit") || strings.Contains(said, "rate limit") {
		return http.StatusTooManyRequests
	}
	return http.StatusBadGateway
}

// retryAfter is what the endpoint asked to wait, or zero.
func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms > 0 && ms < math.MaxInt32 {
		return time.Duration(ms * float64(time.Millisecond))
	}
	if s, err := strconv.ParseFloat(h.Get("Retry-After"), 64); err == nil && s > 0 && s < math.MaxInt32 {
		return time.Duration(s * float64(time.Second))
	}
	if at, err := http.ParseTime(h.Get("Retry-After")); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}
