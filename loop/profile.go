package loop

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/caisson-run/caisson/limits"
)

// Profile is a model with its price, its limits and its retries.
type Profile struct {
	// Name identifies the profile in records; "" means provider/model.
	Name string
	// Model is required.
	Model Model
	// Price is the price of the model's tokens; nil means unknown. The cost is then
	// the one that the provider reports, or unknown.
	Price *limits.Price
	// MaxOutputTokens is the longest answer; zero means the provider's default, or
	// 16,384 tokens under a limit of tokens or cost. If less is left of a limit, a
	// request asks for a shorter one, down to 1,024 tokens.
	MaxOutputTokens int64
	// ContextWindow is the model's context window in tokens. Near it, old tool
	// results are shortened in requests, then old messages are summarized. Zero
	// means unknown: both happen only if the provider refuses a request.
	ContextWindow int64
	// MaxRetries is the number of times that a request is repeated if it failed
	// before its answer began; nil means 2.
	MaxRetries *int
	// MaxRetryDelay is the longest delay before a retry; zero means 2 minutes.
	// If the provider asks for more, the request is not repeated.
	MaxRetryDelay time.Duration
}

const (
	defaultRetries       = 2
	defaultMaxRetryDelay = 2 * time.Minute
	// minRetryDelay is the delay before the first retry; each one doubles it.
	minRetryDelay = 500 * time.Millisecond
)

// validate returns an error for the first field that is missing or out of bounds.
func (p Profile) validate() error {
	switch {
	case p.Model == nil:
		return ErrNoModel
	case p.MaxOutputTokens < 0 || p.ContextWindow < 0:
		return errors.New("negative token count")
	case p.MaxRetries != nil && *p.MaxRetries < 0 || p.MaxRetryDelay < 0:
		return errors.New("negative retries")
	}
	return nil
}

// CheckPrice returns an error if the budget bounds the cost and the price is unknown, so
// that nothing would hold the limit.
func (p Profile) CheckPrice(b limits.Budget) error {
	if b.CostMicroUSD == nil || p.Price != nil || p.Model.Info().Recorded {
		return nil
	}
	return fmt.Errorf("a limit of cost needs the price of the model %s", cmp.Or(p.Name, p.Model.Info().String()))
}

// withDefaults returns p with defaults for zero fields.
func (p Profile) withDefaults() Profile {
	p.Name = cmp.Or(p.Name, p.Model.Info().String())
	if p.MaxRetries == nil {
		p.MaxRetries = new(defaultRetries)
	}
	p.MaxRetryDelay = cmp.Or(p.MaxRetryDelay, defaultMaxRetryDelay)
	return p
}

// retryDelay returns the delay before a failed request is repeated, and whether it
// is. The delay is the provider's, or doubles with each of the retries so far, less
// up to a quarter, so that clients do not all return at once.
func (p Profile) retryDelay(err error, retries int) (time.Duration, bool) {
	failure, ok := errors.AsType[*ModelError](err)
	if !ok || !failure.Retryable || retries >= *p.MaxRetries || failure.RetryAfter > p.MaxRetryDelay {
		return 0, false
	}
	if failure.RetryAfter > 0 {
		return failure.RetryAfter, true
	}
	delay := min(minRetryDelay<<min(retries, 30), p.MaxRetryDelay)
	return delay - rand.N(delay/4+1), true //nolint:gosec // jitter needs no secret
}

// setCost sets the cost of an answer by the price, which takes precedence over the
// cost that the provider reports. Without counted tokens the cost stays unknown.
func (p Profile) setCost(u *limits.Usage) {
	if p.Price != nil && u.Tokens() > 0 {
		u.CostMicroUSD = new(p.Price.Cost(*u))
	}
}
