// Package dns is the lab's cluster DNS: the names of Services and of the endpoints of
// headless Services, as A, AAAA and CNAME records. It has no records for ports (SRV) or
// addresses (PTR), and asks no other name server.
//
//   - [Answer] (pure) makes the answer to a query from what a [Lookup] finds;
//   - [Cache] remembers what a Lookup found, and so bridges an outage of the API server;
//   - [Serve] carries queries and answers, by UDP and TCP.
package dns

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// Domain is the domain of the cluster.
const Domain = "cluster.local."

// Key names a Service, or with Host one endpoint of a headless Service.
type Key struct{ Host, Service, Namespace string }

// Found is what a Lookup finds.
type Found struct {
	// Exists is whether there is something with the name.
	Exists bool
	// Addresses are of both families.
	Addresses []netip.Addr
	// Alias is the name that a Service of type ExternalName stands for.
	Alias string
}

// Lookup finds a name in the cluster. It returns an error only if it cannot know.
type Lookup func(context.Context, Key) (Found, error)

const (
	// ttl is short because Services of tests change often.
	ttlSeconds = 1
	// plainSize is the largest answer by UDP for who does not announce a larger one
	// (RFC 1035, section 4.2.1); maxSize the largest at all, which no link fragments.
	plainSize, maxSize = 512, 1232
)

// Answer returns the answer to a query, or nil if the query deserves none. Limit is the
// greatest length, or 0 by UDP, where the query says it.
func Answer(ctx context.Context, query []byte, limit int, lookup Lookup) []byte {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil || header.Response {
		return nil
	}
	reply := dnsmessage.Header{
		ID: header.ID, Response: true, OpCode: header.OpCode, RecursionDesired: header.RecursionDesired,
	}
	questions, err := parser.AllQuestions()
	if err != nil || len(questions) != 1 {
		reply.RCode = dnsmessage.RCodeFormatError
		return build(reply, nil, nil)
	}
	question := questions[0]
	if limit == 0 {
		limit = announcedSize(&parser)
	}
	if header.OpCode != 0 {
		reply.RCode = dnsmessage.RCodeNotImplemented
		return build(reply, &question, nil)
	}
	key, isOurs, isName := parseName(question.Name.String())
	if !isOurs || question.Class != dnsmessage.ClassINET {
		// Nobody shall wait for a name server elsewhere: there is none.
		reply.RCode = dnsmessage.RCodeRefused
		return build(reply, &question, nil)
	}
	reply.Authoritative = true
	var found Found
	if isName {
		if found, err = lookup(ctx, key); err != nil {
			reply.Authoritative, reply.RCode = false, dnsmessage.RCodeServerFailure
			return build(reply, &question, nil)
		}
	}
	if !found.Exists {
		reply.RCode = dnsmessage.RCodeNameError
		return build(reply, &question, nil)
	}
	records := records(question, found)
	for answer := build(reply, &question, records); ; answer = build(reply, &question, records) {
		if len(answer) <= limit {
			return answer
		}
		// Who wants the rest asks by TCP.
		reply.Truncated, records = true, records[:len(records)/2]
	}
}

// announcedSize returns how long an answer may be, as the query's record OPT says (RFC
// 6891, section 6.2.3).
func announcedSize(parser *dnsmessage.Parser) int {
	if parser.SkipAllAnswers() != nil || parser.SkipAllAuthorities() != nil {
		return plainSize
	}
	for {
		header, err := parser.AdditionalHeader()
		if err != nil {
			return plainSize
		}
		if header.Type == dnsmessage.TypeOPT {
			return min(max(int(header.Class), plainSize), maxSize)
		}
		if parser.SkipAdditional() != nil {
			return plainSize
		}
	}
}

// parseName splits SERVICE.NAMESPACE.svc.cluster.local, or HOST before it. isOurs says
// whether the name is below the cluster's domain, isName whether it can be one of a
// Service.
func parseName(name string) (key Key, isOurs, isName bool) {
	name = strings.ToLower(name)
	if name != Domain && !strings.HasSuffix(name, "."+Domain) {
		return Key{}, false, false
	}
	labels := strings.Split(strings.TrimSuffix(strings.TrimSuffix(name, Domain), "."), ".")
	if slices.Contains(labels, "") {
		return Key{}, true, false
	}
	switch n := len(labels); {
	case n == 3 && labels[2] == "svc":
		return Key{Service: labels[0], Namespace: labels[1]}, true, true
	case n == 4 && labels[3] == "svc":
		return Key{Host: labels[0], Service: labels[1], Namespace: labels[2]}, true, true
	}
	return Key{}, true, false
}

// records returns the records that answer a question.
func records(question dnsmessage.Question, found Found) []dnsmessage.Resource {
	header := dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: ttlSeconds}
	if found.Alias != "" {
		alias, err := dnsmessage.NewName(strings.TrimSuffix(found.Alias, ".") + ".")
		if err != nil {
			return nil
		}
		return []dnsmessage.Resource{{Header: header, Body: &dnsmessage.CNAMEResource{CNAME: alias}}}
	}
	var all []dnsmessage.Resource
	for _, address := range found.Addresses {
		switch {
		case question.Type == dnsmessage.TypeA && address.Is4():
			all = append(all, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: address.As4()}})
		case question.Type == dnsmessage.TypeAAAA && address.Is6():
			all = append(all, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: address.As16()}})
		}
	}
	return all
}

// build packs an answer. An answer that cannot be packed becomes a failure.
func build(header dnsmessage.Header, question *dnsmessage.Question, records []dnsmessage.Resource) []byte {
	message := dnsmessage.Message{Header: header, Answers: records}
	if question != nil {
		message.Questions = []dnsmessage.Question{*question}
	}
	packed, err := message.Pack()
	if err != nil {
		header.RCode = dnsmessage.RCodeServerFailure
		packed, err = (&dnsmessage.Message{Header: header}).Pack()
	}
	if err != nil {
		panic(fmt.Sprintf("pack a message without content: %v", err))
	}
	return packed
}
