package loop

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/caisson-run/caisson/limits"
)

// Profile is a model with its price, limits and retries.
type Profile struct {
	// Name identifies the profile in records; "" means provider/model.
	Name  string
	Model Model
	// Price is nil if unknown. The cost is then the one that the provider reports, or
	// unknown.
	Price *limits.Price
	// MaxOutputTokens bounds an answer; zero means the provider's default, or 16,384
	// tokens under a limit of tokens or cost. If less is left of a limit, requests ask
	// for less, down to 1,024 tokens.
	MaxOutputTokens int64
	// ContextWindow is in tokens. Close to it, old tool results are shortened in
	// requests, then old messages are summarized. Zero means unknown: both happen only
	// if the provider refuses a request.
	ContextWindow int64
	// MaxRetries bounds the retries of a request that failed before its answer began;
	// nil means 2.
	MaxRetries *int
	// MaxRetryDelay bounds the delay before a retry; zero means 2 minutes. If the
	// provider asks for a longer one, the request is not repeated.
	MaxRetryDelay time.Duration
}

const (
	defaultRetries       = 2
	defaultMaxRetryDelay = 2 * time.Minute
	// minRetryDelay is the first retry's delay. Each retry doubles it.
	minRetryDelay = 500 * time.Millisecond
)

func (p Profile) validate(b limits.Budget) error {
	switch {
	case p.Model == nil:
		return ErrNoModel
	case p.MaxOutputTokens < 0 || p.ContextWindow < 0:
		return errors.New("negative token count")
	case p.MaxRetries != nil && *p.MaxRetries < 0 || p.MaxRetryDelay < 0:
		return errors.New("negative retries")
	}
	return p.CheckPrice(b)
}

// CheckPrice returns an error if the budget bounds the cost but the price is unknown,
// so that the limit would have no effect.
func (p Profile) CheckPrice(b limits.Budget) error {
	if b.CostMicroUSD == nil || p.Price != nil || p.Model.Info().Recorded {
		return nil
	}
	return fmt.Errorf("a limit of cost needs the price of the model %s", cmp.Or(p.Name, p.Model.Info().String()))
}

func (p Profile) withDefaults() Profile {
	p.Name = cmp.Or(p.Name, p.Model.Info().String())
	if p.MaxRetries == nil {
		p.MaxRetries = new(defaultRetries)
	}
	p.MaxRetryDelay = cmp.Or(p.MaxRetryDelay, defaultMaxRetryDelay)
	return p
}

// retryDelay returns the delay before a retry, and whether there is one. The delay is
// the provider's, or doubles with each retry, minus up to a quarter so that clients
// don't all return at once.
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

// setCost sets the cost by the price, if known, which takes precedence over the
// provider's cost. Without counted tokens the cost stays unknown.
func (p Profile) setCost(u *limits.Usage) {
	if p.Price != nil && u.Tokens() > 0 {
		u.CostMicroUSD = new(p.Price.Cost(*u))
	}
}
