"""prototype"""
from __future__ import annotations
import math
from phasegate.cost.model import CostModel
from phasegate.policy.base import NEVER, UNLIMITED, Decision, Plan, Snapshot, StepReport
from phasegate.policy.options import Options
from phasegate.policy.traffic import TrafficMonitor
from phasegate.policy.admission import Admission
from phasegate.policy.refill import StepCosts, refill_cost, best_share

RESERVE=0.04
class Auto:
    def __init__(self, options: Options, cost, page: int, spec: str, steady=True, ski=1.0, xs=1.0) -> None:
        self._options=options; self.spec=spec
        self._monitor=TrafficMonitor(); self._adm=Admission(self._monitor,page)
        self.costs=StepCosts(cost.alpha_prefill,cost.alpha_decode,0.0,(cost.kappa-1)*cost.k_d)
        self._mode=None; self._quota=0
        self._loss=0.; self._rate=0.; self._key=None; self._x=0.; self._xkey=None
        self.steady=steady; self.ski=ski; self.xs=xs
        self._last='decode'; self._n=0
        self.fires={}
    def plan(self, now: Snapshot) -> Plan:
        o=self._options; B=o.budget(now); n=min(o.n, now.slots, B)
        running=now.running
        can=now.waiting>0 and not now.kv_blocked
        if self._mode is not None:
            if now.prefilling or (self._quota>0 and can and running<n):
                if self._mode=='E': return Plan(False,self._quota,B,n,o.chunk)
                return Plan(True,self._quota,B-now.decoding,n,o.chunk,kv_reserve=int(RESERVE*now.kv_capacity))
            self._mode=None; self._quota=0
        elif now.prefilling:
            return Plan(False,0,B,n,o.chunk)
        f=0
        if can and running<n:
            f=self._adm.fit(now,n-running)
        if f<=0:
            self._rate=0.
            self._n=running
            return Plan(True,0,0,n,repeat=UNLIMITED)
        heads=self._adm._heads
        tokens=sum(heads[:f])
        ne=running+f; self._n=ne
        c=refill_cost(self.costs,tokens,f,now.decoding,now.context_tokens,B)
        m=self._monitor
        xkey=(m.version,round(math.log(ne)*40))
        if xkey!=self._xkey:
            self._xkey=xkey
            self._x=best_share(self.costs,ne,m.mean_prompt,m.mean_output,now.context_tokens/max(1,running),B)
        why=None
        if not running: why='idle'
        elif f>=self.xs*self._x*ne: why='share'
        elif self._loss>=self.ski*c.cost: why='ski'
        if why:
            self.fires[(why,'E' if c.is_exclusive else 'M')]=self.fires.get((why,'E' if c.is_exclusive else 'M'),0)+1
            self._loss=0.; self._rate=0.
            self._mode='E' if c.is_exclusive else 'M'; self._quota=f
            if self._mode=='E': return Plan(False,f,B,n,o.chunk)
            return Plan(True,f,B-now.decoding,n,o.chunk,kv_reserve=int(RESERVE*now.kv_capacity))
        self._rate=self.costs.alpha_d*f/ne
        rep=max(1,math.ceil((self.ski*c.cost-self._loss)/self._rate))
        return Plan(True,0,0,n,repeat=rep)
    def observe(self, step: StepReport) -> None:
        if self._rate: self._loss+=self._rate*step.iterations
        if step.admitted: self._quota=max(0,self._quota-step.admitted)
        if step.kv_blocked and self._quota: self._quota=0
        self._monitor.observe(step); self._adm.observe(step)
    @property
    def decision(self): return Decision('auto',round(self._x*self._n),self._n)
