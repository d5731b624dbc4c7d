package openai

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/caisson-run/caisson/loop"
)

// Options configures a model of an endpoint.
type Options struct {
	// BaseURL is the endpoint up to and including its version, such as
	// http://localhost:11434/v1; "" means [DefaultBaseURL].
	loop.ModelOptions
	// API is the endpoint's API; "" means [Chat].
	API API
	// Provider is the name of the provider in records; "" means "openai".
	Provider string
	// Stream requests answers in pieces.
	Stream bool
	// SendReasoning sends the model's earlier reasoning with each request. Some
	// endpoints require it and some refuse it.
	SendReasoning bool
}

// API is one of the two APIs of these endpoints.
type API string

// The APIs. OpenAI's models since GPT-6 call tools in Responses alone; most other
// endpoints know only Chat.
const (
	Chat      API = "chat"
	Responses API = "responses"
)

// DefaultBaseURL is OpenAI's own endpoint.
const DefaultBaseURL = "https://api.openai.com/v1"

// ErrInvalid is the error of [New] for invalid [Options].
var ErrInvalid = errors.New("invalid model options")

// withDefaults returns valid options, with defaults for zero fields.
func (o Options) withDefaults() (Options, error) {
	o.API = cmp.Or(o.API, Chat)
	if o.API != Chat && o.API != Responses {
		return o, fmt.Errorf("%w: unknown API %q", ErrInvalid, o.API)
	}
	o.Provider = cmp.Or(o.Provider, "openai")
	return o, nil
}
