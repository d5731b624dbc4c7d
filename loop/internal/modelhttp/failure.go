package modelhttp

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// ErrMalformed is wrapped by the error for an answer that violates the protocol.
var ErrMalformed = errors.New("answer is not one of the protocol")

// StreamError is an error that the endpoint sent instead of an answer.
type StreamError struct {
	Body []byte
	// Begun reports whether part of an answer came first.
	Begun bool
}

func (e *StreamError) Error() string {
	return "endpoint failed in its answer: " + extractMessage(e.Body)
}

// refusal is an error that the endpoint answered with.
type refusal struct {
	status  int
	message string
	// guessed means that the endpoint sent no status, and begun that part of an answer came
	// first.
	guessed, begun bool
}

const errUnparsed = loop.AnswerError("the endpoint can't parse the model's answer")

// unparsed matches the messages of servers that can't parse their model's answer or an
// earlier one: Ollama (harmony, model/parsers), llama.cpp (common/chat) and vLLM
// (openai-harmony).
var unparsed = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`error parsing tool call|XML syntax error on line \d|^expected element type <|` +
		`incomplete GLM tool call|mismatched arg_key and arg_value counts|failed to parse Laguna JSON|` +
		`Failed to parse input at pos \d|Failed to parse tool call arguments as JSON|Invalid diff: '|` +
		`unexpected tokens remaining in message header|while expecting start token \d|no channel value found in header`)
})

// unparsed500 matches messages of Ollama that other servers may use for something else.
// Ollama sends them with status 500, or in a stream without a status.
var unparsed500 = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^failed to parse (XML|JSON): `) })

// unparsed400 matches messages about an answer that servers send as if the request were
// bad: Groq's for a malformed call, and Anthropic's for a forbidden text.
var unparsed400 = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\btool_use_failed\b|Output blocked by content filtering policy`)
})

// Unwrap returns a [loop.AnswerError] if the model's words caused the failure, and
// [loop.ErrQuota] if the account's quota did.
func (e *refusal) Unwrap() error {
	switch {
	case isQuota(e.status, e.message):
		return loop.ErrQuota
	case e.status >= http.StatusInternalServerError && unparsed().MatchString(e.message),
		(e.status == http.StatusInternalServerError || e.guessed) && unparsed500().MatchString(e.message),
		e.status == http.StatusBadRequest && (e.begun || unparsed400().MatchString(e.message)):
		return errUnparsed
	}
	return nil
}

func (e *refusal) Error() string {
	if e.message == "" {
		return fmt.Sprintf("endpoint answered %d %s", e.status, http.StatusText(e.status))
	}
	return fmt.Sprintf("endpoint answered %d %s: %s", e.status, http.StatusText(e.status), e.message)
}

// ModelError classifies err. It removes the key from the endpoint's messages, which may
// be logged.
func (w *Watcher) ModelError(err error) error {
	inStream, isStream := errors.AsType[*StreamError](err)
	if outer, ok := errors.AsType[*url.Error](err); ok {
		err = outer.Err // the outer error repeats the whole URL
	}
	switch {
	case isStream:
		status, known := embeddedStatus(inStream.Body)
		message := w.redactKey(extractMessage(inStream.Body))
		class := classifyRefusal(status, message)
		return &loop.ModelError{
			Class: class, Status: status, ProviderMessage: messageForUsers(class, message),
			Retryable: !inStream.Begun && isRetriable(status, nil, message), Err: &refusal{status: status, message: message, guessed: !known, begun: inStream.Begun},
		}
	case w.status != 0:
		message := w.redactKey(extractMessage(w.body))
		class := classifyRefusal(w.status, message)
		return &loop.ModelError{
			Class: class, Status: w.status, ProviderMessage: messageForUsers(class, message), RetryAfter: parseRetryAfter(w.header),
			Retryable: isRetriable(w.status, w.header, message), Err: &refusal{status: w.status, message: message},
		}
	case errors.Is(err, bufio.ErrTooLong): // one event of more than 32 MiB
		return w.ModelError(ErrTooLarge)
	case errors.Is(err, ErrMalformed), errors.Is(err, ErrTooLarge), errors.Is(err, errRedirect):
		return &loop.ModelError{
			Class: loop.ModelOther, Visible: true, Err: fmt.Errorf("model endpoint %s: %w", safeurl.String(w.BaseURL), err),
		}
	default:
		return &loop.ModelError{
			Class: loop.ModelNetwork, Visible: true, Retryable: w.Response == nil, Err: fmt.Errorf("model endpoint %s: %w", safeurl.String(w.BaseURL), err),
		}
	}
}

// messageForUsers returns the endpoint's message if it is about the request's model,
// key or quota, which users can change, and otherwise "".
func messageForUsers(class loop.ErrorClass, message string) string {
	switch class {
	case loop.ModelInvalidRequest, loop.ModelAuth, loop.ModelRateLimit:
		return safeurl.InText(message)
	}
	return ""
}

func (w *Watcher) redactKey(text string) string {
	if w.APIKey == "" {
		return text
	}
	return strings.ReplaceAll(text, w.APIKey, "[key]")
}

func classifyRefusal(status int, message string) loop.ErrorClass {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return loop.ModelAuth
	case status == http.StatusTooManyRequests && isTooLarge(message):
		return loop.ModelContextOverflow
	case status == http.StatusTooManyRequests, status == http.StatusPaymentRequired,
		status == http.StatusBadRequest && strings.HasPrefix(message, "Your credit balance is too low"): // Anthropic
		return loop.ModelRateLimit
	case status == http.StatusRequestEntityTooLarge, isContextOverflow(message):
		return loop.ModelContextOverflow
	case status == http.StatusNotImplemented:
		return loop.ModelInvalidRequest
	case status == http.StatusRequestTimeout, status == http.StatusConflict, status >= http.StatusInternalServerError:
		return loop.ModelServer
	case status >= http.StatusBadRequest:
		return loop.ModelInvalidRequest
	default:
		return loop.ModelOther
	}
}

// isTooLarge reports whether a request exceeds a rate limit by itself, so that waiting can't help.
func isTooLarge(message string) bool {
	return strings.Contains(strings.ToLower(message), "request too large")
}

// isContextOverflow reports whether a refusal is about the conversation's length. There
// is no common code. The phrases come from OpenAI, vLLM, llama.cpp, Mistral, Groq,
// OpenRouter and the endpoints behind it.
func isContextOverflow(message string) bool {
	message = strings.ToLower(message)
	for _, phrase := range []string{
		"context_length", "context length", "context window", "context size", "maximum context", "max_model_len",
		"prompt is too long", "input is too long", "too many tokens", "too many input tokens", "reduce the length",
		"exceeds the maximum number of tokens", "string_above_max_length",
	} {
		if strings.Contains(message, phrase) {
			return true
		}
	}
	return false
}

// RefusedParameter returns a refusal's message, and whether it may be about a part of
// the request that the endpoint doesn't accept.
func RefusedParameter(err error) (string, bool) {
	failure, isFailure := errors.AsType[*loop.ModelError](err)
	refused, isRefusal := errors.AsType[*refusal](err)
	if !isFailure || !isRefusal || failure.Class == loop.ModelContextOverflow {
		return "", false
	}
	bad := refused.status == http.StatusBadRequest || refused.status == http.StatusUnprocessableEntity
	return refused.message, bad
}

const maxMessageRunes = 500

// extractMessage returns the message in an error's body: the members error, message and
// detail with code and type, or else the body. It is one line of limited length.
func extractMessage(body []byte) string {
	var parts []string
	var envelope map[string]json.RawMessage
	if json.Unmarshal(body, &envelope) == nil {
		for _, key := range []string{"error", "message", "detail"} {
			parts = append(parts, memberTexts(envelope[key])...)
		}
	}
	message := cmp.Or(strings.Join(parts, "; "), string(body))
	message = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(message, ""))
	if runes := []rune(message); len(runes) > maxMessageRunes {
		message = string(runes[:maxMessageRunes]) + "…"
	}
	return strings.TrimSpace(message)
}

func memberTexts(raw json.RawMessage) []string {
	if len(raw) == 0 {
		return nil
	}
	var inner struct {
		Message, Code, Type, Param LooseString
	}
	if json.Unmarshal(raw, &inner) == nil {
		var out []string
		for _, s := range []LooseString{inner.Message, inner.Code, inner.Type, inner.Param} {
			if s != "" {
				out = append(out, string(s))
			}
		}
		return out
	}
	var l LooseString
	_ = l.UnmarshalJSON(raw)
	if l == "" {
		return nil
	}
	return []string{string(l)}
}

// errorStatuses maps error types and codes to the status that they have outside a
// stream: Anthropic's (API reference, Errors), OpenAI's (guide Error codes; API
// reference, response.failed), and llama.cpp's (format_error_response).
var errorStatuses = map[string]int{
	"authentication_error": http.StatusUnauthorized,
	"billing_error":        http.StatusPaymentRequired,
	"permission_error":     http.StatusForbidden,
	"not_found_error":      http.StatusNotFound,
	"request_too_large":    http.StatusRequestEntityTooLarge,
	"rate_limit_error":     http.StatusTooManyRequests,
	"api_error":            http.StatusInternalServerError,
	"timeout_error":        http.StatusGatewayTimeout,
	"overloaded_error":     529,

	"invalid_api_key":         http.StatusUnauthorized,
	"invalid_request_error":   http.StatusBadRequest,
	"invalid_prompt":          http.StatusBadRequest,
	"context_length_exceeded": http.StatusBadRequest,
	"rate_limit_exceeded":     http.StatusTooManyRequests,
	"insufficient_quota":      http.StatusTooManyRequests,
	"server_error":            http.StatusInternalServerError,
	"server_is_overloaded":    http.StatusServiceUnavailable,

	"exceed_context_size_error": http.StatusBadRequest,
	"not_supported_error":       http.StatusNotImplemented,
	"unavailable_error":         http.StatusServiceUnavailable,
}

// embeddedStatus returns the HTTP status that an error inside an answer names or
// implies, or 502 and false.
func embeddedStatus(body []byte) (status int, known bool) {
	type description struct {
		Code, Status, Type LooseString
	}
	var envelope struct {
		description // vLLM's, which has no member error
		Error       description
	}
	_ = json.Unmarshal(body, &envelope) // an error that is a string has no status
	for _, d := range []description{envelope.Error, envelope.description} {
		for _, s := range []LooseString{d.Code, d.Status} {
			if n, err := strconv.Atoi(string(s)); err == nil && n >= 400 && n < 600 {
				return n, true
			}
		}
		for _, s := range []LooseString{d.Code, d.Type} {
			if status := errorStatuses[string(s)]; status != 0 {
				return status, true
			}
		}
	}
	if text := strings.ToLower(string(body)); strings.Contains(text, "rate_limit") || strings.Contains(text, "rate limit") {
		return http.StatusTooManyRequests, true
	}
	return http.StatusBadGateway, false
}

func parseRetryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms > 0 {
		return time.Duration(min(ms, math.MaxInt32) * float64(time.Millisecond))
	}
	if s, err := strconv.ParseFloat(h.Get("Retry-After"), 64); err == nil && s > 0 {
		return time.Duration(min(s, math.MaxInt32) * float64(time.Second))
	}
	if at, err := http.ParseTime(h.Get("Retry-After")); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

// LooseString is decoded from a string or null. Other JSON values are kept as their
// text.
type LooseString string

// UnmarshalJSON never fails.
func (l *LooseString) UnmarshalJSON(data []byte) error {
	var s string
	switch {
	case string(data) == "null":
		*l = ""
	case data[0] == '"' && json.Unmarshal(data, &s) == nil:
		*l = LooseString(s)
	default:
		*l = LooseString(data)
	}
	return nil
}
