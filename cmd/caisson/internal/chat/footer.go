package chat

import (
	"cmp"
	"fmt"
	"strings"
	"sync"

	"github.com/charmbracelet/x/ansi"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
)

// Status is the content of a chat's status line, from the session's records. It is safe
// for concurrent use. The zero value shows nothing.
type Status struct {
	mu      sync.Mutex
	model   string
	sandbox string
	mode    string
	egress  *record.Egress
	changed int
	// spent is in millionths of a US dollar. unknown is set if a price is missing.
	// limit is nil for none.
	spent   int64
	unknown bool
	limit   *int64
	running bool
	footer  func(cells, lines int) ui.Footer
}

// AddRecord updates the status.
func (s *Status) AddRecord(r record.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.Kind {
	case record.KindSessionCreated, record.KindSessionResumed: // their payloads begin alike
		p := record.PayloadOf[record.SessionCreated](r)
		s.spent, s.unknown, s.changed = 0, false, 0 // may be an earlier session's
		s.model, s.mode, s.limit = p.Model.String(), p.WorkspaceMode, p.Budget.CostMicroUSD
		s.egress = p.Egress
		s.sandbox = cmp.Or(p.Backend.Chosen, "no sandbox yet")
	case record.KindSandboxStarted, record.KindSandboxRestarted:
		p := record.PayloadOf[record.SandboxStarted](r)
		s.sandbox = p.Attestation.Backend + ", network: " + s.egress.Words(p.Attestation.Network)
	case record.KindModelCallCompleted:
		p := record.PayloadOf[record.ModelCallCompleted](r)
		if p.Model.Model != "" {
			s.model = p.Model.String()
		}
		s.addCost(p.Usage)
	case record.KindWorkerModelCall:
		if p := record.PayloadOf[record.WorkerModelCall](r); p.Class == "" {
			s.addCost(p.Usage)
		}
	case record.KindTurnStarted:
		s.running = true
	case record.KindTurnCompleted, record.KindTurnCancelled:
		s.running = false
	}
}

// addCost adds a cost. The caller holds mu.
func (s *Status) addCost(u limits.Usage) {
	if u.CostMicroUSD == nil {
		s.unknown = true
		return
	}
	s.spent += *u.CostMicroUSD
}

// setUsed sets what a resumed session has used.
func (s *Status) setUsed(u limits.Usage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unknown = u.CostMicroUSD == nil; !s.unknown {
		s.spent = *u.CostMicroUSD
	}
}

// setChanged sets the number of changed files and reports whether it differs.
func (s *Status) setChanged(files int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	other := s.changed != files
	s.changed = files
	return other
}

func (s *Status) formatCost() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.costLocked()
}

func (s *Status) costLocked() string {
	if s.unknown {
		return "cost unknown"
	}
	return dollars(s.spent)
}

// dollars formats an amount in cents, or exactly if it is less than one.
func dollars(micro int64) string {
	if micro > 0 && micro < 10_000 {
		return "$" + record.CostUSD(&micro)
	}
	return fmt.Sprintf("$%.2f", float64(micro)/1e6)
}

func (s *Status) formatLine() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	mode := s.mode
	if s.changed > 0 {
		mode += fmt.Sprintf(", %d changed", s.changed)
	}
	cost := s.costLocked()
	if s.limit != nil {
		cost += " of " + dollars(*s.limit)
	}
	parts := []string{s.model, s.sandbox, mode, cost}
	if s.running {
		parts = append(parts, "Ctrl+C stops")
	}
	text, _ := tools.Display(strings.Join(parts, " · "))
	return ui.SureWidth(text)
}

// Footer returns the end of the live region: queued messages, status, composer and
// menu. It is for [ui.Options.Footer]. It is empty before Run.
func (s *Status) Footer(cells, lines int) ui.Footer {
	s.mu.Lock()
	footer := s.footer
	s.mu.Unlock()
	if footer == nil {
		return ui.Footer{}
	}
	return footer(cells, lines)
}

func (s *Status) setFooter(footer func(cells, lines int) ui.Footer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.footer = footer
}

func (c *chat) renderFooter(cells, lines int) ui.Footer {
	status := c.Status.formatLine()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hint != "" {
		status = ui.SureWidth(c.hint)
	}
	var above, below []string
	if n := len(c.queue); n > 0 {
		first, _ := tools.Display(c.queue[0])
		above = append(above, ui.SureWidth(fmt.Sprintf("  %d queued, Up takes the last back: %s", n, first)))
	}
	above = append(above, ui.Dim(truncateText(status, cells), c.Colour))
	if len(c.composer.menu) > 0 {
		below = append(below, ui.Dim(truncateText("  "+strings.Join(c.composer.menu, "  "), cells), c.Colour))
	}
	if over := len(above) + len(below) + 1 - lines; over > 0 {
		above = above[min(over, len(above)):]
	}
	for i, l := range above {
		above[i] = truncateText(l, cells)
	}
	draft := layOut(c.composer.text, c.composer.cursor, cells, lines-len(above)-len(below))
	for i, row := range draft.rows { // a screen can be narrower than one escaped character
		draft.rows[i] = truncateText(row, cells)
	}
	draft.before = truncateText(draft.before, cells)
	return ui.Footer{
		Lines: append(append(above, draft.rows...), below...),
		Row:   len(above) + draft.row, Before: draft.before, At: draft.at,
	}
}

func truncateText(text string, cells int) string { return ansi.Truncate(text, max(cells, 1), "…") }
