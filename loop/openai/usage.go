package openai

import (
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools/safeurl"
)

func (m *Model) warnMissingUsage(u limits.Usage) {
	if u.Tokens() == 0 && m.usageMissingLogged.CompareAndSwap(false, true) {
		m.options.Logger.Warn("endpoint reports no usage: token and cost limits have no effect",
			zap.String("base_url", safeurl.String(m.endpoint.BaseURL)), zap.String("model", m.options.Model))
	}
}
