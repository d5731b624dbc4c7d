package openai

import (
	"net/url"
	"strings"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/modelhttp"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// quirks are the features of an ordinary request that an endpoint refuses.
type quirks struct {
	// noStreamOptions reports whether usage can't be requested in a stream.
	noStreamOptions bool
	// otherMaxTokensName reports whether the longest answer has the name other
	// than the usual one, see [Model.usesMaxCompletionTokens].
	otherMaxTokensName bool
	// noEncryptedReasoning reports whether encrypted reasoning can't be requested:
	// models that don't reason refuse it.
	noEncryptedReasoning bool
}

// adaptQuirks returns q changed by what the endpoint refused with err, and whether
// to send the request again. It changes each quirk at most once; known are the
// quirks before the first request.
func (m *Model) adaptQuirks(known, q quirks, req loop.Request, err error) (quirks, bool) {
	message, ok := modelhttp.RefusedParameter(err)
	switch {
	case !ok:
		return q, false
	case m.options.API == Responses:
		if !strings.Contains(strings.ToLower(strings.ReplaceAll(message, "_", " ")), "encrypted content") {
			return q, false
		}
		if m.stale.Add(req.Messages) {
			m.options.Logger.Info("the endpoint refused earlier reasoning of the model, which is left out from now on",
				zap.String("model", m.options.Model), zap.Error(err))
			return q, true
		}
		again := !q.noEncryptedReasoning
		q.noEncryptedReasoning = true
		return q, again
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

// storeQuirks stores the quirks of a successful request for later calls.
func (m *Model) storeQuirks(known, q quirks) {
	if q == known {
		return
	}
	m.quirks.Store(&q)
	m.options.Logger.Info("adapted requests to an endpoint that differs from the standard",
		zap.String("base_url", safeurl.String(m.endpoint.BaseURL)), zap.String("model", m.options.Model),
		zap.Bool("no_stream_options", q.noStreamOptions), zap.Bool("other_max_tokens", q.otherMaxTokensName),
		zap.Bool("no_encrypted_reasoning", q.noEncryptedReasoning))
}

// usesMaxCompletionTokens reports whether the longest answer is sent as
// max_completion_tokens rather than max_tokens. OpenAI's own endpoint requires the
// former; most others know only the latter.
func (m *Model) usesMaxCompletionTokens(q quirks) bool {
	u, err := url.Parse(m.endpoint.BaseURL)
	own := err == nil && (u.Hostname() == "openai.com" || strings.HasSuffix(u.Hostname(), ".openai.com"))
	return own != q.otherMaxTokensName
}
