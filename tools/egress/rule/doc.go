// Package rule decides which hosts may be connected to, for the commands of a
// sandbox and for the fetch tool.
//
// Hosts and URLs have one canonical form, which is compared with rules and dialled.
// [Policy] decides about hosts and requests before a name is resolved. [Guard]
// checks a host's addresses, and only checked addresses are dialled.
package rule
