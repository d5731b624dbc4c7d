package ollama

import (
	"errors"
	"fmt"

	"github.com/caisson-run/caisson/loop"
)

// Options configures a model.
type Options struct {
	// BaseURL is the server without a path; "" means [DefaultBaseURL]. ReasoningEffort is
	// none, or a word of the model such as low, medium and high; models that know no
	// words take these as on. MaxOutputTokens of zero means no bound but the context window.
	loop.ModelOptions
	// ContextWindow is the number of tokens for which the server reserves memory, sent
	// as num_ctx; zero means the server's default, which is often too short for an agent.
	ContextWindow int64
	// Stream requests answers in pieces.
	Stream bool
}

// DefaultBaseURL is a server on this machine.
const DefaultBaseURL = "http://127.0.0.1:11434"

// ErrInvalid is the error of [New] for invalid [Options].
var ErrInvalid = errors.New("invalid model options")

// withDefaults returns valid options, with defaults for zero fields.
func (o Options) withDefaults() (Options, error) {
	if o.ContextWindow < 0 {
		return o, fmt.Errorf("%w: negative number", ErrInvalid)
	}
	return o, nil
}
