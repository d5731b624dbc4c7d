package server

import (
	"sync"
	"time"
)

// Answers that change nothing are audit records, one each. A session takes a
// burst of them, more than any number of clients that race for one answer, and
// then one a second; others are refused without a record.
const (
	attemptBurst = 256
	attemptEvery = time.Second
)

// bucket is a token bucket. It is safe for concurrent use.
type bucket struct {
	mu     sync.Mutex
	tokens int
	filled time.Time
}

func newBucket() *bucket { return &bucket{tokens: attemptBurst, filled: time.Now()} }

// take says whether one more is allowed.
func (b *bucket) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := int(time.Since(b.filled) / attemptEvery); n > 0 {
		b.tokens = min(attemptBurst, b.tokens+n)
		b.filled = b.filled.Add(time.Duration(n) * attemptEvery)
	}
	if b.tokens == 0 {
		return false
	}
	b.tokens--
	return true
}
