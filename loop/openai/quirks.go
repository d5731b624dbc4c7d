package openai

import (
	"net/url"
	"strings"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// quirks is what an endpoint refuses of an ordinary request. The zero value is
// nothing.
type quirks struct {
	// noStreamOptions says that usage can't be asked for in a stream.
	noStreamOptions bool
	// otherMaxTokensName says that the bound on the answer has its other name.
	otherMaxTokensName bool
}

// adaptQuirks changes what the endpoint refused, and says whether the request is
// worth sending again. Nothing is changed twice: known is how q began.
func (m *Model) adaptQuirks(known, q quirks, req loop.Request, err error) (quirks, bool) {
	message, ok := refusedParameter(err)
	switch {
	case !ok:
		return q, false
	case strings.Contains(message, "stream_options") && m.options.Stream && !q.noStreamOptions:
		q.noStreamOptions = true
		return q, true
	case (strings.Contains(message, "max_tokens") || strings.Contains(message, "max_completion_tokens")) &&
		m.maxTokens(req) > 0 && q.otherMaxTokensName == known.otherMaxTokensName:
		q.otherMaxTokensName = !q.otherMaxTokensName
		return q, true
	}
	return q, false
}

// storeQuirks keeps what worked, for the next call.
func (m *Model) storeQuirks(known, q quirks) {
	if q == known {
		return
	}
	m.quirks.Store(&q)
	m.options.Logger.Info("endpoint differs from the standard, and was adapted to",
		zap.String("base_url", safeurl.String(m.options.BaseURL)), zap.String("model", m.options.Model),
		zap.Bool("no_stream_options", q.noStreamOptions), zap.Bool("other_max_tokens", q.otherMaxTokensName))
}

// usesMaxCompletionTokens says that the bound is sent as max_completion_tokens: OpenAI's
// own endpoint wants that, most others know the old max_tokens alone.
func (m *Model) usesMaxCompletionTokens(q quirks) bool {
	u, err := url.Parse(m.options.BaseURL)
	own := err == nil && (u.Hostname() == "openai.com" || strings.HasSuffix(u.Hostname(), ".openai.com"))
	return own != q.otherMaxTokensName
}
