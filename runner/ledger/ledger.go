package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/loop"
)

// Dir is the ledger's directory in the state directory.
const Dir = "usage"

// lockTime bounds the wait for other processes. Each holds the lock for some
// milliseconds.
const lockTime = 10 * time.Second

// holderPrefix begins the names of the files whose locks open ledgers hold.
const holderPrefix = "open-"

// Options are the options of a [Ledger]. StateDir is required.
type Options struct {
	// StateDir is the state directory. It must exist, and belong only to the
	// caller.
	StateDir string
	// User bounds what each user uses of all profiles together. Profiles bounds
	// what all users together use of each profile.
	User     limits.Ceilings
	Profiles map[string]limits.Ceilings
	// Now returns the time; nil means time.Now.
	Now func() time.Time
}

// Bound reports whether the options have a ceiling.
func (o Options) Bound() bool {
	for _, c := range o.Profiles {
		if !c.IsZero() {
			return true
		}
	}
	return !o.User.IsZero()
}

// Ledger is the ledger of one session. It is safe for concurrent use. The
// caller of [Open] must close it.
type Ledger struct {
	opts Options
	dir  string
	// holder is the lock that shows other processes that this ledger is open.
	holder *state.Lock
	id     string
	// noLock leaves out the lock, for tests.
	noLock bool

	mu     sync.Mutex
	warned map[string]bool
}

// FileError reports a ledger that can't be used. No request may begin: an
// unknown use is not zero.
type FileError struct {
	Path string
	// Corrupt reports that the file was read, but is invalid.
	Corrupt bool
	Err     error
}

func (e *FileError) Error() string {
	if e.Corrupt {
		return fmt.Sprintf("the count of usage in %s is damaged: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("the count of usage in %s can't be used: %v", e.Path, e.Err)
}

// Hint returns what to do about it.
func (e *FileError) Hint() string {
	if e.Corrupt {
		return "Restore that file from a copy, or remove it: what was used before then counts against no limit."
	}
	return "Make that file and its directory writable for you alone, with room on their file system."
}

func (e *FileError) Unwrap() error { return e.Err }

// Open opens the ledger of a state directory. An error is a [*FileError].
func Open(ctx context.Context, o Options) (*Ledger, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	l := &Ledger{opts: o, dir: filepath.Join(o.StateDir, Dir), id: ulid.Make().String(), warned: map[string]bool{}}
	if err := os.Mkdir(l.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, l.fileError(err)
	}
	for _, dir := range []string{o.StateDir, l.dir} {
		if err := state.CheckDir(dir); err != nil {
			return nil, &FileError{Path: dir, Err: err}
		}
	}
	err := l.withLock(ctx, func() error {
		if _, err := l.readDocument(); err != nil {
			return err
		}
		// Under the lock: no other process looks at the file before it is
		// locked.
		holder, err := state.TryAcquire(l.holderPath(l.id))
		if err != nil {
			return l.fileError(err)
		}
		l.holder = holder
		return l.removeRemains()
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Close ends the ledger. Unsettled reservations no longer count.
func (l *Ledger) Close() error { return l.holder.Remove() }

// ForUser returns a ledger whose requests count for one user.
func (l *Ledger) ForUser(user string) loop.Ledger { return userLedger{l, user} }

type userLedger struct {
	*Ledger
	user string
}

func (l userLedger) Reserve(ctx context.Context, profile string, d limits.Demand) (entry loop.LedgerEntry, err error) {
	if d.Price == nil && (l.opts.User.BoundsCost() || l.opts.Profiles[profile].BoundsCost()) {
		return entry, fmt.Errorf("a ceiling of cost needs the price of the model %s", profile)
	}
	id := ulid.Make().String()
	err = l.changeDocument(ctx, func(doc *document) error {
		doc.dropDead(l.isDead)
		entry.Demand = d
		for _, c := range l.findCeilings(doc, l.user, profile) {
			if w, ok := l.newWarning(c); ok {
				entry.Warnings = append(entry.Warnings, w)
			}
			lowered, err := c.fitDemand(&entry.Demand)
			if err != nil {
				return err
			}
			entry.Lowered = cmp.Or(lowered, entry.Lowered)
		}
		cost, _ := entry.Demand.Cost()
		doc.Reservations = append(doc.Reservations, reservation{
			ID: id, Holder: l.id, User: l.user, Profile: profile,
			amounts: amounts{Requests: 1, Tokens: entry.Demand.Tokens(), CostMicroUSD: cost},
		})
		return nil
	})
	entry.Settle = func(used *limits.Usage) error {
		return l.changeDocument(context.Background(), func(doc *document) error {
			doc.settleReservation(id, l.user, profile, used)
			return nil
		})
	}
	return entry, err
}

// standing is one limit of a ceiling, and what counts against it.
type standing struct {
	limits.ExceededError

	key string
}

// findCeilings returns the limits that apply to a request, in the order in
// which they are reported: the day's first, then the user's first.
func (l *Ledger) findCeilings(doc *document, user, profile string) []standing {
	var out []standing
	for _, p := range []limits.Period{limits.PeriodDay, limits.PeriodMonth} {
		for _, of := range []struct {
			key, profile string
			ceiling      limits.Ceiling
			account      account
			reserved     func(reservation) bool
		}{
			{"user " + user, "", l.opts.User.Of(p), doc.Users[user], func(r reservation) bool { return r.User == user }},
			{"profile " + profile, profile, l.opts.Profiles[profile].Of(p), doc.Profiles[profile], func(r reservation) bool { return r.Profile == profile }},
		} {
			used := of.account.countFor(p, l.opts.Now())
			for _, k := range []limits.Kind{limits.KindRequests, limits.KindCost, limits.KindTokens} {
				limit := of.ceiling.Limit(k)
				if limit == nil {
					continue
				}
				s := standing{key: fmt.Sprint(of.key, p, used.Since, k), ExceededError: limits.ExceededError{
					Kind: k, Limit: *limit, Used: used.of(k), Period: p, Until: new(p.End(used.Since)), Profile: of.profile,
				}}
				for _, r := range doc.Reservations {
					if of.reserved(r) {
						s.Reserved = addAmounts(s.Reserved, r.of(k))
					}
				}
				s.Used = addAmounts(s.Used, s.Reserved)
				out = append(out, s)
			}
		}
	}
	return out
}

// fitDemand lowers d's output to what is left. It returns an *ExceededError if
// that is too little.
func (s standing) fitDemand(d *limits.Demand) (lowered *limits.ExceededError, err error) {
	left := s.Limit - s.Used
	if s.Kind == limits.KindRequests {
		if left < 1 {
			return nil, &s.ExceededError
		}
		return nil, nil
	}
	fit, ok := d.Fit(s.Kind, left)
	if !ok {
		s.Needed = fit.Tokens()
		if s.Kind == limits.KindCost {
			s.Needed, _ = fit.Cost()
		}
		if left <= 0 && s.Reserved == 0 {
			s.Needed = 0 // nothing is left, whatever the request needs
		}
		return nil, &s.ExceededError
	}
	if fit.Output < d.Output {
		lowered = &s.ExceededError
	}
	*d = fit
	return lowered, nil
}

// newWarning returns the limit as a warning if four fifths of it are used and
// it has not returned it before.
func (l *Ledger) newWarning(s standing) (limits.ExceededError, bool) {
	s.Used -= s.Reserved
	s.Reserved = 0
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.Used < s.Limit-s.Limit/5 || l.warned[s.key] {
		return limits.ExceededError{}, false
	}
	l.warned[s.key] = true
	return s.ExceededError, true
}

// isDead reports whether a reservation's ledger is closed or its process has
// ended. The caller holds the lock.
func (l *Ledger) isDead(holder string) bool {
	if holder == l.id {
		return false
	}
	if held, err := state.IsHeld(l.holderPath(holder)); held || err != nil {
		return false // it is alive, or this is unknown
	}
	_ = os.Remove(l.holderPath(holder)) // a file that stays does no harm
	return true
}

// removeRemains removes what killed processes left. The caller holds the lock.
func (l *Ledger) removeRemains() error {
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return l.fileError(err)
	}
	for _, e := range entries {
		if holder, ok := strings.CutPrefix(e.Name(), holderPrefix); ok {
			l.isDead(holder) // it removes the file
		} else if strings.HasPrefix(e.Name(), ".tmp-") {
			_ = os.Remove(filepath.Join(l.dir, e.Name())) // the next one tries again
		}
	}
	return nil
}

// changeDocument changes the document under the lock. It writes nothing if edit
// returns an error.
func (l *Ledger) changeDocument(ctx context.Context, edit func(*document) error) error {
	return l.withLock(ctx, func() error {
		doc, err := l.readDocument()
		if err != nil {
			return err
		}
		doc.beginPeriods(l.opts.Now())
		if err := edit(doc); err != nil {
			return err
		}
		return l.writeDocument(doc)
	})
}

func (l *Ledger) withLock(ctx context.Context, f func() error) error {
	if l.noLock {
		return f()
	}
	lock, err := state.Acquire(ctx, filepath.Join(l.dir, "lock"), lockTime)
	if err != nil {
		return l.fileError(err)
	}
	return errors.Join(f(), lock.Release())
}

func (l *Ledger) path() string { return filepath.Join(l.dir, "ledger.json") }

func (l *Ledger) holderPath(id string) string { return filepath.Join(l.dir, holderPrefix+id) }

func (l *Ledger) fileError(err error) error { return &FileError{Path: l.path(), Err: err} }
