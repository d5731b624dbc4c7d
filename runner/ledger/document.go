package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/limits/state"
)

const (
	// version is the version of the file's format.
	version = 1
	// maxBytes bounds the file: some thousand users and profiles.
	maxBytes = 1 << 20
)

type document struct {
	Version      int                `json:"version"`
	Users        map[string]account `json:"users"`
	Profiles     map[string]account `json:"profiles"`
	Reservations []reservation      `json:"reservations"`

	// now is the time of the change.
	now time.Time
}

// account is what one user, or all users of a profile, have used.
type account struct {
	Day   count `json:"day"`
	Month count `json:"month"`
}

// count is what was used in the period that began at Since.
type count struct {
	Since time.Time `json:"since"`
	amounts
}

// reservation bounds what a request under way may use.
type reservation struct {
	ID      string `json:"id"`
	Holder  string `json:"holder"`
	User    string `json:"user"`
	Profile string `json:"profile"`
	amounts
}

type amounts struct {
	Requests     int64 `json:"requests"`
	Tokens       int64 `json:"tokens"`
	CostMicroUSD int64 `json:"cost_micro_usd"`
}

// countFor returns the count of one period. A new account's begins now.
func (a account) countFor(p limits.Period, now time.Time) count {
	c := a.Day
	if p == limits.PeriodMonth {
		c = a.Month
	}
	if c.Since.IsZero() {
		c.Since = p.Start(now)
	}
	return c
}

func (a amounts) of(k limits.Kind) int64 {
	switch k {
	case limits.KindRequests:
		return a.Requests
	case limits.KindTokens:
		return a.Tokens
	}
	return a.CostMicroUSD
}

func (a amounts) isNegative() bool { return a.Requests < 0 || a.Tokens < 0 || a.CostMicroUSD < 0 }

// addAmounts returns the sum of two amounts, at most the largest int64. A
// negative amount, which only a broken provider reports, counts as zero.
func addAmounts(a, b int64) int64 {
	a, b = max(a, 0), max(b, 0)
	return a + min(b, math.MaxInt64-a)
}

// beginPeriods resets the counts whose period is over. A count that began after
// now stays: the clock was set back.
func (d *document) beginPeriods(now time.Time) {
	begin := func(p limits.Period, c count) count {
		if start := p.Start(now); c.Since.Before(start) {
			return count{Since: start}
		}
		return c
	}
	for _, accounts := range []map[string]account{d.Users, d.Profiles} {
		for name, a := range accounts {
			accounts[name] = account{Day: begin(limits.PeriodDay, a.Day), Month: begin(limits.PeriodMonth, a.Month)}
		}
		maps.DeleteFunc(accounts, func(_ string, a account) bool { return a.Month.Requests == 0 && a.Day.Requests == 0 })
	}
	if d.Users == nil {
		d.Users = map[string]account{}
	}
	if d.Profiles == nil {
		d.Profiles = map[string]account{}
	}
	d.now = now
}

func (d *document) dropDead(isDead func(holder string) bool) {
	dead := map[string]bool{}
	d.Reservations = slices.DeleteFunc(d.Reservations, func(r reservation) bool {
		if _, known := dead[r.Holder]; !known {
			dead[r.Holder] = isDead(r.Holder)
		}
		return dead[r.Holder]
	})
}

// settleReservation replaces a reservation with what was used, nil for nothing.
func (d *document) settleReservation(id, user, profile string, used *limits.Usage) {
	d.Reservations = slices.DeleteFunc(d.Reservations, func(r reservation) bool { return r.ID == id })
	if used == nil {
		return
	}
	var cost int64
	if used.CostMicroUSD != nil {
		cost = *used.CostMicroUSD
	}
	add := func(c count) count {
		c.Requests = addAmounts(c.Requests, 1)
		c.Tokens = addAmounts(c.Tokens, used.Tokens())
		c.CostMicroUSD = addAmounts(c.CostMicroUSD, cost)
		return c
	}
	for _, at := range []struct {
		accounts map[string]account
		name     string
	}{{d.Users, user}, {d.Profiles, profile}} {
		a := at.accounts[at.name]
		at.accounts[at.name] = account{Day: add(a.countFor(limits.PeriodDay, d.now)), Month: add(a.countFor(limits.PeriodMonth, d.now))}
	}
}

// checkDocument returns an error for content that this package does not write.
func (d *document) checkDocument() error {
	if d.Version != version {
		return fmt.Errorf("it has version %d instead of %d", d.Version, version)
	}
	for _, accounts := range []map[string]account{d.Users, d.Profiles} {
		for name, a := range accounts {
			for p, c := range map[limits.Period]count{limits.PeriodDay: a.Day, limits.PeriodMonth: a.Month} {
				if c.isNegative() {
					return fmt.Errorf("a count of %s is negative", name)
				}
				if !c.Since.Equal(p.Start(c.Since)) || c.Since.IsZero() {
					return fmt.Errorf("%v is not the start of a %s", c.Since, p)
				}
			}
		}
	}
	for _, r := range d.Reservations {
		if r.isNegative() {
			return errors.New("a reservation is negative")
		}
		if _, err := ulid.ParseStrict(r.Holder); err != nil { // it becomes a file name
			return fmt.Errorf("holder %q of a reservation: %w", r.Holder, err)
		}
	}
	return nil
}

// readDocument reads the file, or returns an empty document if there is none.
// It returns an error for a file that is not exactly as written: nothing in it
// counts as zero.
func (l *Ledger) readDocument() (*document, error) {
	info, err := os.Lstat(l.path())
	if errors.Is(err, fs.ErrNotExist) {
		return &document{Version: version}, nil
	}
	if err != nil {
		return nil, l.fileError(err)
	}
	if why := state.UnsafeReason(info); why != "" {
		return nil, l.fileError(errors.New("it " + why))
	}
	text, err := state.Read(l.path(), maxBytes)
	if err != nil && !errors.Is(err, state.ErrDamaged) {
		return nil, l.fileError(err)
	}
	var doc document
	if err == nil {
		err = state.Decode(text, &doc)
	}
	if err == nil {
		err = doc.checkDocument()
	}
	if err != nil {
		return nil, &FileError{Path: l.path(), Corrupt: true, Err: err}
	}
	return &doc, nil
}

// writeDocument replaces the file, whole or not at all.
func (l *Ledger) writeDocument(doc *document) error {
	doc.Version = version
	text, err := json.Marshal(doc)
	if err != nil {
		return l.fileError(err)
	}
	if len(text) > maxBytes {
		return l.fileError(errors.New("it has too many users, profiles or requests under way"))
	}
	if err := state.Replace(l.path(), append(text, '\n')); err != nil {
		return l.fileError(err)
	}
	return nil
}
