// Package bridge lets a foreign agent in the sandbox ask its model. The agent sends
// its requests to http://model.caisson.internal/, in its provider's protocol and
// without a key. The bridge passes them on to the profile's provider, and bounds and
// reports each call:
//
//   - Only the endpoints that ask a model are served. Names of models are those of
//     profiles, their providers, and aliases.
//   - The agent's credentials are dropped and the profile's are set. The profile's are
//     replaced in answers.
//   - Tools that the provider runs itself are removed from requests, and media that the
//     provider would fetch are refused.
//   - Each request is reserved in the session's ledger before it is sent. Its bound on
//     the output is lowered to what is left.
//
// Everything else passes unchanged and unbuffered, in both directions: refusals of the
// provider too, such as 429 with Retry-After, since retries are the agent's.
//
// # Budgets
//
// A request's input is reserved as an estimate of one token for each 4 bytes of the
// body, or as many as the provider counted for the bytes of the last request to the
// same profile, if these were more. One token for each byte, which is the most, would
// end a session with most of its budget left. The output is reserved up to its bound.
//
// While an answer arrives, its text is counted in the same way, at least one token for
// each event with text, and replaced by what the provider counts, if that is more. Once
// input and output pass what was reserved, more is reserved. If nothing is left, the
// answer is cut before the event that passed it. So the estimate never passes the
// budget. The provider's own count can, by as much as its tokens are shorter than 4
// bytes in the part of the session that the estimate is for: the last request's new
// input, and the output, but that is bounded by the provider too.
//
// Usage that the provider doesn't report, or that is too low to be true, counts as the
// estimate. So do answers that broke off, for which providers charge too. Refused
// requests count nothing.
//
// A request beyond the budget is answered with status 400 and the limit's name. Agents
// repeat requests after other statuses, some without end.
package bridge

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/egress/secret"
)

// Host is the reserved host name at which programs in the sandbox find the bridge.
const Host = "model.caisson.internal"

// Key is what agents hold instead of a key. It is no secret.
const Key = "caisson-bridge"

// Protocol is a provider's protocol.
type Protocol string

// The protocols.
const (
	Anthropic Protocol = "anthropic" // Anthropic's Messages
	Responses Protocol = "responses" // OpenAI's Responses
	Chat      Protocol = "chat"      // OpenAI's Chat Completions
	Gemini    Protocol = "gemini"    // Google's generateContent
)

// Profile is a model that agents may ask.
type Profile struct {
	Name     string
	Protocol Protocol
	// BaseURL is the provider's URL, with the version (/v1, /v1beta) except for
	// Anthropic. Its query is part of each request.
	BaseURL *url.URL
	// Model is the provider's name for the model.
	Model string
	// Header has the credentials and configured headers, which replace the agent's.
	Header http.Header
	// Secrets are replaced in answers by text of the same length, in the spellings of
	// package secret. Those shorter than [secret.MinBytes] are not.
	Secrets []string
	// Price is nil if it is unknown.
	Price *limits.Price
	// MaxOutputTokens bounds each answer, reasoning included. Zero means 16,384, or
	// 32,768 for Responses and Gemini, if the agent sets no bound.
	MaxOutputTokens int64
	// ContextWindow is in tokens, 0 if it is unknown. A default bound on the output is
	// at most a quarter of it.
	ContextWindow int64
	// HeaderTimeout bounds the wait for an answer's headers, zero means 10 minutes.
	// IdleTimeout bounds pauses in an answer, and how long the agent may not read;
	// zero means 2 minutes. AnswerTimeout bounds the time from an answer's headers to
	// its end; zero means an hour.
	HeaderTimeout, IdleTimeout, AnswerTimeout time.Duration
}

// Options are the options of a [Bridge].
type Options struct {
	Profiles []Profile
	// Models maps names that agents ask for to names of profiles. "*" stands for every
	// name that is otherwise unknown. A profile's name and its model's always work.
	Models map[string]string
	// WebSearch lets the provider search the web, if the agent asks for it.
	WebSearch bool
	// Ledger bounds and counts the use. It is required.
	Ledger loop.Ledger
	// Transport sends the requests; nil means [http.DefaultTransport].
	Transport http.RoundTripper
	// Call is told of each call to a provider, and of each request that was refused.
	// It may be nil. It is called from several goroutines, and calls that it blocks
	// wait.
	Call func(Call)
}

// Bounds of requests and answers.
const (
	// MaxBodyBytes bounds a request's body, and MaxAnswerBytes an answer's.
	MaxBodyBytes   = 64 << 20
	MaxAnswerBytes = 64 << 20
	// maxCalls is the number of calls at once. maxWaiting more wait.
	maxCalls   = 8
	maxWaiting = 64
	// maxOutput is the longest answer of a profile without a bound, in tokens. Otherwise a
	// request could hold all that is left of a limit that others share.
	maxOutput = 131_072
	// minOutput is the shortest answer that is worth its request, in tokens.
	minOutput = 1_024
)

// Bridge serves the requests of one session. It is safe for concurrent use.
type Bridge struct {
	opts    Options
	secrets map[string]*secret.Set // by profile
	slots   chan struct{}
	waiting chan struct{}

	mu sync.Mutex
	// density is the number of tokens per byte of a profile's last request.
	density map[string]float64
}

// New returns a bridge, or an error for invalid options.
func New(o Options) (*Bridge, error) {
	if o.Ledger == nil {
		return nil, errors.New("no ledger")
	}
	if o.Transport == nil {
		o.Transport = http.DefaultTransport
	}
	if o.Call == nil {
		o.Call = func(Call) {}
	}
	b := &Bridge{
		opts: o, secrets: map[string]*secret.Set{}, density: map[string]float64{},
		slots: make(chan struct{}, maxCalls), waiting: make(chan struct{}, maxWaiting),
	}
	b.opts.Profiles = nil
	for _, p := range o.Profiles {
		if err := b.addProfile(p); err != nil {
			return nil, fmt.Errorf("model profile %s: %w", p.Name, err)
		}
	}
	for alias, name := range o.Models {
		if _, ok := b.secrets[name]; !ok {
			return nil, fmt.Errorf("model %s: there is no profile %s", alias, name)
		}
	}
	return b, nil
}

func (b *Bridge) addProfile(p Profile) error {
	switch p.Protocol {
	case Anthropic, Responses, Chat, Gemini:
	default:
		return fmt.Errorf("unknown protocol %q", p.Protocol)
	}
	switch {
	case p.Name == "" || p.Model == "":
		return errors.New("it needs a name and a model")
	case b.secrets[p.Name] != nil:
		return errors.New("the name is another's too")
	case p.BaseURL == nil || p.BaseURL.Host == "" || p.BaseURL.Scheme != "http" && p.BaseURL.Scheme != "https":
		return errors.New("the base URL is not an http or https URL")
	case p.MaxOutputTokens < 0 || p.ContextWindow < 0 || p.HeaderTimeout < 0 || p.IdleTimeout < 0 || p.AnswerTimeout < 0:
		return errors.New("negative number")
	}
	p.HeaderTimeout = cmp.Or(p.HeaderTimeout, 10*time.Minute)
	p.IdleTimeout = cmp.Or(p.IdleTimeout, 2*time.Minute)
	p.AnswerTimeout = cmp.Or(p.AnswerTimeout, time.Hour)
	set, err := newSecrets(p.Secrets)
	if err != nil {
		return err
	}
	b.secrets[p.Name] = set
	b.opts.Profiles = append(b.opts.Profiles, p)
	return nil
}

// here is the origin whose answers secrets are replaced in. It is the bridge's own,
// since a provider's may be one that secrets can't be for, such as http.
var here = rule.Origin{Scheme: "https", Host: Host, Port: 443}

func newSecrets(values []string) (*secret.Set, error) {
	to, err := rule.ParseEgress("https://" + Host + "/")
	if err != nil {
		return nil, err
	}
	var list []secret.Secret
	seen := map[string]bool{}
	for _, v := range values {
		if len(v) >= secret.MinBytes && !seen[v] {
			list = append(list, secret.Secret{Name: fmt.Sprintf("KEY%d", len(list)), Value: v, To: []rule.Rule{to}})
			seen[v] = true
		}
	}
	return secret.New(list)
}

// defaultOutput returns the bound on an answer to a request without one.
func (p *Profile) defaultOutput() int64 {
	n := int64(16_384)
	if p.Protocol == Responses || p.Protocol == Gemini {
		n = 32_768
	}
	if p.ContextWindow > 0 {
		n = min(n, max(p.ContextWindow/4, 1))
	}
	return cmp.Or(p.MaxOutputTokens, n)
}

// findProfile returns the profile for a name that the agent asked for.
func (b *Bridge) findProfile(p Protocol, asked string) (*Profile, error) {
	name, ok := b.opts.Models[asked]
	var other *Profile // that has the name, but speaks another protocol
	for _, isIt := range []func(*Profile) bool{
		func(of *Profile) bool { return ok && asked != "*" && of.Name == name },
		func(of *Profile) bool { return of.Name == asked },
		func(of *Profile) bool { return of.Model == asked },
		func(of *Profile) bool { return other == nil && of.Name == b.opts.Models["*"] },
	} {
		for i := range b.opts.Profiles {
			of := &b.opts.Profiles[i]
			switch {
			case !isIt(of):
			case of.Protocol == p:
				return of, nil
			default:
				other = of
			}
		}
	}
	if other != nil {
		return nil, fmt.Errorf("the model %s speaks the protocol %s, and this endpoint %s", shorten(asked), other.Protocol, p)
	}
	return nil, fmt.Errorf("there is no model %s here; these are: %q", shorten(asked), b.modelNames(p))
}

// ServeRequest answers a request of the session's command with this number. If an answer
// that is not a stream of events breaks off, it panics with [http.ErrAbortHandler], as
// the server of package http expects.
func (b *Bridge) ServeRequest(w http.ResponseWriter, r *http.Request, command int) {
	start := time.Now()
	switch {
	case strings.Contains(strings.ToLower(r.Header.Get("Upgrade")), "websocket"):
		// Codex tries a WebSocket first, and goes on without one after this status.
		writeError(w, guessProtocol(r), http.StatusUpgradeRequired, "use HTTP without a WebSocket")
		return
	case r.URL.Path == "/" && (r.Method == http.MethodHead || r.Method == http.MethodGet):
		return // a look whether there is a server
	case isPlain(r) && b.serveModels(w, r):
		return
	}
	c := &call{bridge: b, w: w, r: r, start: start}
	c.report = Call{Command: command, Protocol: guessProtocol(r), Endpoint: shorten(r.Method + " " + r.URL.Path)}
	e, ok := route(r.URL.Path)
	if !ok || !isPlain(r) || r.Method != http.MethodPost {
		c.refuse(http.StatusNotFound, "this endpoint is not available: "+c.report.Endpoint)
		return
	}
	c.request.endpoint = e
	c.request.webSearch = b.opts.WebSearch
	c.report.Protocol, c.report.Endpoint = e.protocol, e.name
	if e.streams() && r.URL.Query().Get("alt") != "sse" {
		c.refuse(http.StatusBadRequest, "a stream must be one of events: add alt=sse to the URL")
		return
	}
	if !c.waitForSlot() {
		return
	}
	defer func() { <-b.slots }()
	c.serve()
}

// waitForSlot waits until one of the calls at once ends.
func (c *call) waitForSlot() bool {
	b := c.bridge
	select {
	case b.waiting <- struct{}{}:
		defer func() { <-b.waiting }()
	default:
		c.refuse(http.StatusServiceUnavailable, "too many requests wait")
		return false
	}
	select {
	case b.slots <- struct{}{}:
		return true
	case <-c.r.Context().Done():
		c.fail(ClassClientGone, 0, nil)
		return false
	}
}

// readBody reads the request's body.
func (c *call) readBody() ([]byte, bool) {
	if coding := c.r.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		c.refuse(http.StatusBadRequest, "the body is encoded; send it as it is")
		return nil, false
	}
	raw, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, MaxBodyBytes))
	switch _, tooLarge := errors.AsType[*http.MaxBytesError](err); {
	case tooLarge:
		c.refuse(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d MiB", MaxBodyBytes>>20))
	case err != nil:
		c.fail(ClassClientGone, 0, err)
	}
	return raw, err == nil
}

// estimate returns the estimated number of tokens in a request.
func (b *Bridge) estimate(q *request) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return int64(float64(q.bytes)*max(b.density[q.profile.Name], 0.25)) + q.images*imageTokens + 1
}

// learn remembers what a provider counted for a request. Short requests and those with
// images say little about the next one.
func (b *Bridge) learn(q *request, tokens int64) {
	if q.bytes < 4<<10 || q.images > 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.density[q.profile.Name] = min(float64(tokens)/float64(q.bytes), 1)
}
