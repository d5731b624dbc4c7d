package anthropic

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/caisson-run/caisson/loop"
)

// Options configures a model. Answers are always requested in pieces.
type Options struct {
	// BaseURL is the endpoint without its version; "" means [DefaultBaseURL].
	// MaxOutputTokens of zero means 32,000.
	loop.ModelOptions
	// ThinkingTokens is the budget of the model's reasoning, for models before 4.6;
	// zero means the model's default.
	ThinkingTokens int64
}

// DefaultBaseURL is Anthropic's own endpoint.
const DefaultBaseURL = "https://api.anthropic.com"

// defaultMaxTokens is the default of Options.MaxOutputTokens.
const defaultMaxTokens = 32_000

// ErrInvalid is the error of [New] for invalid [Options].
var ErrInvalid = errors.New("invalid model options")

// withDefaults returns valid options, with defaults for zero fields.
func (o Options) withDefaults() (Options, error) {
	if o.ThinkingTokens < 0 || o.MaxOutputTokens < 0 {
		return o, fmt.Errorf("%w: negative number", ErrInvalid)
	}
	o.MaxOutputTokens = cmp.Or(o.MaxOutputTokens, defaultMaxTokens)
	if o.ThinkingTokens >= o.MaxOutputTokens {
		return o, fmt.Errorf("%w: a thinking budget of %d tokens leaves no answer within %d", ErrInvalid, o.ThinkingTokens, o.MaxOutputTokens)
	}
	return o, nil
}
