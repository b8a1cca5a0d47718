package gobgp

import (
	api "github.com/osrg/gobgp/v4/api"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

// peerOf translates a neighbour, which may send maxReceived routes of each family.
func peerOf(p routes.Peer, maxReceived int) *api.Peer {
	peer := &api.Peer{
		Conf: &api.PeerConf{
			NeighborAddress: p.Neighbour.String(), PeerAsn: uint32(p.PeerASN), LocalAsn: uint32(p.MyASN),
			AuthPassword: p.Password,
		},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime: uint64(p.HoldSeconds), KeepaliveInterval: uint64(p.KeepaliveSeconds),
			ConnectRetry: uint64(p.ConnectSeconds), IdleHoldTimeAfterReset: idleSeconds,
		}},
		Transport: &api.Transport{RemotePort: uint32(p.Port), LocalAddress: p.SourceAddress},
	}
	if p.EBGPMultihop > 0 {
		peer.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: uint32(p.EBGPMultihop)}
	}
	if p.TTLSecurity {
		peer.TtlSecurity = &api.TtlSecurity{Enabled: true, TtlMin: 255}
	}
	if p.RestartSeconds > 0 {
		peer.GracefulRestart = &api.GracefulRestart{
			Enabled: true, RestartTime: uint32(p.RestartSeconds), DeferralTime: deferralSeconds,
			LocalRestarting: p.SetsRestartState,
		}
	}
	for _, f := range p.Families {
		family := apiFamily(f)
		peer.AfiSafis = append(peer.AfiSafis, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: family, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: p.RestartSeconds > 0}},
			PrefixLimits:      &api.PrefixLimit{Family: family, MaxPrefixes: uint32(maxReceived)},
		})
	}
	return peer
}

func apiFamily(f purelbv1.IPFamily) *api.Family {
	afi := api.Family_AFI_IP
	if f == "IPv6" {
		afi = api.Family_AFI_IP6
	}
	return &api.Family{Afi: afi, Safi: api.Family_SAFI_UNICAST}
}
